//! The contents of the kernel's tables when an agent starts.

use std::collections::{BTreeSet, HashMap, HashSet};

use lb_common::layout::{self, Bitmap, Pool};

use super::key::{BackendKey, BackendState, FrontendKey};
use super::side_entry::SideEntry;
use super::sweep::DatagramFlow;
use super::table;

/// What an earlier agent left in the kernel.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub frontends: Vec<(FrontendKey, layout::Frontend)>,
    /// Pools that are not empty.
    pub pools: Vec<FoundPool>,
    pub backends: Vec<FoundBackend>,
    pub destination_bits: Vec<Bitmap>,
    pub source_bits: Vec<Bitmap>,
    pub side_entries: Vec<SideEntry>,
    pub datagrams: BTreeSet<DatagramFlow>,
}

/// What the kernel already has, so that the first plan need not set it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) frontends: HashMap<FrontendKey, layout::Frontend>,
    pub(super) destination_bits: HashSet<Bitmap>,
}

#[derive(Debug)]
pub struct FoundBackend {
    pub index: u32,
    pub generation: u32,
    /// `None`: the index is unused, and only its generation matters.
    pub backend: Option<(BackendKey, BackendState)>,
}

/// A pool, and a summary of its slots. The slots are not copied: with 100,000 Services they take a
/// hundred megabytes. Their backends and a digest suffice to compare them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPool {
    pub index: u32,
    pub pool: Pool,
    /// The backends in the slots, each once.
    pub members: Box<[u32]>,
    /// See [`table::digest`].
    pub digest: u64,
}

/// Reads the slots of one pool after another. Its memory is reused from pool to pool.
pub struct PoolReader {
    /// By backend index: the last pool in which it was seen.
    seen: Vec<u32>,
}

impl PoolReader {
    /// `backends`: the limit of backend indexes. Slots with higher ones only affect the digest.
    pub fn new(backends: u32) -> Self {
        Self { seen: vec![u32::MAX; backends as usize] }
    }

    /// Each pool must be read only once.
    pub fn read(&mut self, index: u32, pool: Pool, slots: impl Iterator<Item = u32>) -> FoundPool {
        let mut members = Vec::new();
        let digest = table::digest(slots.inspect(|&backend| {
            if let Some(last) = self.seen.get_mut(backend as usize)
                && *last != index
            {
                *last = index;
                members.push(backend);
            }
        }));
        FoundPool { index, pool, members: members.into(), digest }
    }
}
