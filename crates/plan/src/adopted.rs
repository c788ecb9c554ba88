//! What an earlier agent left, until the first plan claims or retires it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use lb_common::layout::{Bitmap, ServicePortName};
use lb_common::maglev::{self, DEFAULT_WEIGHT, Weight};

use super::allocate::Region;
use super::found::Found;
use super::history::AdoptedHistories;
use super::key::{BackendKey, BackendState};
use super::side_entry::SideEntry;
use super::sweep::DatagramFlow;
use super::table::{self, Table, WeightedBackend};

/// What was found, and is not claimed by a service port yet.
pub(super) struct Adopted {
    /// Compared with what the first plan sets.
    pub(super) found: Found,
    pub(super) pools: HashMap<u32, Arc<AdoptedPool>>,
    pub(super) backends: Arc<AdoptedBackends>,
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
    /// By backend index, where they are not the default.
    pub(super) weights: HashMap<u32, Weight>,
    /// Computed once, by whoever needs it first.
    pub(super) has_own_table: OnceLock<bool>,
}

impl AdoptedPool {
    pub(super) fn weight(&self, member: u32) -> Weight {
        self.weights.get(&member).copied().unwrap_or(DEFAULT_WEIGHT)
    }

    /// Whether the slots are the Maglev table of the backends in them.
    pub(super) fn has_own_table(&self, backends: &AdoptedBackends) -> bool {
        *self.has_own_table.get_or_init(|| {
            // A table of another size has no permutations of all slots, which the filling relies on.
            if maglev::size_within(self.region.size) != self.region.size {
                return false;
            }
            let weighted = |&index: &u32| {
                let (key, _) = backends.get(index)?;
                Some(WeightedBackend {
                    identity: key.identity(),
                    weight: self.weight(index),
                    index,
                })
            };
            let Some(weighted) = self.members.iter().map(weighted).collect() else { return false };
            let table = Table::maglev(self.region.size, weighted);
            table::digest(table.slots()) == self.digest
        })
    }
}

/// The pools that an earlier agent left, for a thread that compares their tables before the first plan: that takes most
/// of the plan's time, and needs no objects.
pub struct AdoptedTables {
    pub(super) pools: Vec<Arc<AdoptedPool>>,
    pub(super) backends: Arc<AdoptedBackends>,
}

impl AdoptedTables {
    /// Ends early once the first plan is made.
    pub fn compare_all(self) {
        for pool in self.pools {
            // Otherwise the plan has taken the pool over or retired it.
            if Arc::strong_count(&pool) > 1 {
                pool.has_own_table(&self.backends);
            }
        }
    }
}
