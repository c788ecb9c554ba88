//! The planner's state: what the kernel holds, as planned so far.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use lb_common::layout::FrontendKind;
use lb_rules::model::{Backend, ServicePort, ServicePortKey};

use super::addresses::{Addresses, UnservedPolicy};
use super::adopted::Adopted;
use super::allocate::{Indexes, Regions};
use super::backends::Backends;
use super::bits::Bits;
use super::history::{HistoryState, SlotHistory};
use super::key::{BackendKey, FrontendKey};
use super::pool_table::PoolTable;
use super::room::Room;
use super::side_entry::{SideEntry, SideEntryCounts};

/// What the kernel holds, as planned so far.
pub struct Planner {
    pub(super) room: Room,
    pub(super) held: BTreeMap<ServicePortKey, ProgrammedPort>,
    /// The owner of each frontend, which may move from one service port to another in one change.
    pub(super) owners: HashMap<FrontendKey, Owner>,
    pub(super) addresses: Addresses,
    pub(super) indexes: Indexes,
    pub(super) regions: Regions,
    pub(super) backends: Backends,
    pub(super) bits: Bits,
    pub(super) side_entry_counts: SideEntryCounts,
    /// Addresses of the cluster's nodes, once they are known.
    pub(super) nodes: Option<BTreeSet<IpAddr>>,
    /// Addresses from which the kernel accepts tunnels.
    pub(super) peers: BTreeSet<IpAddr>,
    /// The time of the last plan, in seconds.
    pub(super) now: u32,
    pub(super) history: HistoryState,
    /// The sum of all service ports' checksums.
    pub(super) table_checksum: u64,
    /// How many service ports use tunnels.
    pub(super) tunnelled: usize,
    pub(super) adopted: Option<Adopted>,
    /// Whether an earlier agent may have used any index.
    pub(super) has_adopted: bool,
}

/// The service port that set a frontend in the kernel, and the kind it gave it.
pub(super) struct Owner {
    pub(super) service_port: ServicePortKey,
    pub(super) kind: FrontendKind,
}

/// A service port in the kernel.
pub(super) struct ProgrammedPort {
    pub(super) index: u32,
    /// Shared with the model.
    pub(super) service_port: Arc<ServicePort>,
    /// By scope: cluster, local.
    pub(super) tables: [PoolTable; 2],
    /// Its endpoints outside of its pools that the kernel has: flows may refer to them.
    pub(super) draining: Vec<BackendKey>,
    pub(super) side_entries: BTreeSet<SideEntry>,
    /// Whether its name is in the kernel. The name follows from the key, so it is not stored here.
    pub(super) is_named: bool,
    /// Checksum of the cluster pool's table; 0 if there is none, or other nodes may have another.
    pub(super) checksum: u64,
    /// The earlier owners of the cluster pool's slots.
    pub(super) history: SlotHistory,
}

impl ProgrammedPort {
    /// Its state before anything is written.
    pub(super) fn empty(index: u32) -> Self {
        Self {
            index,
            service_port: Arc::default(),
            tables: [PoolTable::EMPTY; 2],
            draining: Vec::new(),
            side_entries: BTreeSet::new(),
            is_named: false,
            checksum: 0,
            history: SlotHistory::default(),
        }
    }
}

/// What a service port had and no longer has.
pub(super) struct Leftover {
    pub(super) owner: ServicePortKey,
    pub(super) frontends: Vec<FrontendKey>,
    pub(super) members: Vec<Backend>,
    pub(super) draining: Vec<BackendKey>,
    pub(super) side_entries: Vec<SideEntry>,
    /// The index and tables, if the service port was removed.
    pub(super) retired: Option<(u32, [PoolTable; 2])>,
}

impl Planner {
    /// Starts from an empty kernel, with maps of the default sizes.
    pub fn new() -> Self {
        Self::with_room(Room::default())
    }

    /// Starts from an empty kernel.
    pub fn with_room(room: Room) -> Self {
        Self {
            room,
            held: BTreeMap::new(),
            owners: HashMap::new(),
            addresses: Addresses::default(),
            // Index 0 has the pool that is always empty.
            indexes: Indexes::new(1, room.service_ports),
            regions: Regions::new(room.pool_slots),
            backends: Backends::new(room.backends),
            bits: Bits::default(),
            side_entry_counts: SideEntryCounts::default(),
            nodes: None,
            peers: BTreeSet::new(),
            now: 0,
            history: HistoryState::default(),
            table_checksum: 0,
            tunnelled: 0,
            adopted: None,
            has_adopted: false,
        }
    }
}

impl Planner {
    /// With another policy for packets to addresses that Millrace assigned, if no port of a Service takes them.
    pub fn with_unserved(mut self, policy: UnservedPolicy) -> Self {
        self.addresses.set_unserved(policy);
        self
    }
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}
