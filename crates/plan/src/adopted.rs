//! What an earlier agent left, until the first plan claims or retires it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use lb_common::layout::{Bitmap, ServicePortName};

use super::allocate::Region;
use super::found::Found;
use super::history::AdoptedHistories;
use super::key::{BackendKey, BackendState};
use super::side_entry::SideEntry;
use super::sweep::DatagramFlow;

/// What was found, and is not claimed by a service port yet.
pub(super) struct Adopted {
    /// Compared with what the first plan sets.
    pub(super) found: Found,
    pub(super) pools: HashMap<u32, AdoptedPool>,
    pub(super) backends: AdoptedBackends,
    /// Indexes of service ports.
    pub(super) unclaimed: BTreeSet<u32>,
    pub(super) source_bits: Vec<Bitmap>,
    /// By the service port's index.
    pub(super) side_entries: HashMap<u32, BTreeSet<SideEntry>>,
    /// By the service port's index.
    pub(super) names: HashMap<u32, Arc<ServicePortName>>,
    pub(super) histories: AdoptedHistories,
    pub(super) datagrams: BTreeSet<DatagramFlow>,
}

/// By index: nearly all indexes up to the highest one are in use.
#[derive(Default)]
pub(super) struct AdoptedBackends(Vec<Option<(BackendKey, BackendState)>>);

impl AdoptedBackends {
    pub(super) fn insert(&mut self, index: u32, backend: (BackendKey, BackendState)) {
        let index = index as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(backend);
    }

    pub(super) fn get(&self, index: u32) -> Option<&(BackendKey, BackendState)> {
        self.0.get(index as usize)?.as_ref()
    }
}

pub(super) struct AdoptedPool {
    /// Empty if it overlaps with another pool's region, which would be a bug of the earlier agent.
    /// The pool is then rebuilt in another region.
    pub(super) region: Region,
    pub(super) members: Box<[u32]>,
    pub(super) digest: u64,
}
