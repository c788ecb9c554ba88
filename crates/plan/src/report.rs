//! Read access to what was planned, for logs and metrics.

use std::collections::HashMap;

use lb_rules::model::ServicePortKey;

use super::key::{BackendKey, FrontendKey};
use super::side_entry::SideEntryCounts;
use super::state::Planner;

impl Planner {
    /// The index of a service port, by which its traffic is counted.
    pub fn service_port_index(&self, key: &ServicePortKey) -> Option<u32> {
        self.held.get(key).map(|held| held.index)
    }

    /// The index of a backend, by which its traffic is counted.
    pub fn backend_index(&self, backend: &BackendKey) -> Option<u32> {
        self.backends.index_of(backend)
    }

    /// The service port that owns a frontend.
    pub fn owner(&self, frontend: &FrontendKey) -> Option<&ServicePortKey> {
        self.owners.get(frontend).map(|owner| &owner.service_port)
    }

    pub fn frontends(&self) -> usize {
        self.owners.len() + self.addresses.len()
    }

    pub fn service_ports(&self) -> usize {
        self.held.len()
    }

    pub fn backends(&self) -> usize {
        self.backends.len()
    }

    pub fn side_entry_counts(&self) -> SideEntryCounts {
        self.side_entry_counts
    }

    /// Service ports by their index in the kernel.
    pub fn by_index(&self) -> HashMap<u32, &ServicePortKey> {
        self.held.iter().map(|(key, held)| (held.index, key)).collect()
    }

    /// The checksum of all cluster pools' tables, equal on all nodes that know the same endpoints.
    pub fn table_checksum(&self) -> u64 {
        self.table_checksum
    }

    /// Slots of `POOL_SLOTS` in use.
    pub fn pool_slots(&self) -> u32 {
        self.room.pool_slots - self.regions.free_slots()
    }
}
