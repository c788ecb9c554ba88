//! Computes the steps from what the kernel holds to what it should hold. Pure.
//!
//! [`Planner`] stores what was planned before. Given a change, it returns ordered [`Step`]s. Its
//! work is proportional to the change.
//!
//! # Invariants
//! - The steps never expose a partly written Service: backends and tables are written before the
//!   pool that refers to them, pools before the frontend; removal is in the reverse order.
//! - An index or region that was given up is not allocated again in the same plan: packets that are
//!   being processed may still refer to it.
//! - A backend index that is reused for another backend gets another generation.
//!
//! Tests: `tests` beside this file.

mod addresses;
mod adopt;
mod adopted;
mod allocate;
mod backends;
mod bits;
mod checksum;
mod compact;
mod datagrams;
mod execute;
mod found;
mod frontends;
mod history;
mod key;
mod locations;
mod names;
mod pool_table;
mod pools;
mod report;
mod room;
mod service_ports;
mod side_entries;
mod side_entry;
mod state;
mod step;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_rules::model::{ServicePort, ServicePortKey};

pub use addresses::UnservedPolicy;
pub use adopted::AdoptedTables;
pub use checksum::of_table as table_checksum;
pub use execute::{WriteFamily, WriteTables};
pub use found::{FoundBackend, FoundPool, PoolReader, Snapshot};
pub use history::KnownHistory;
pub use key::{BackendKey, BackendState, FrontendKey, Scope};
pub use room::{MORE_ENDPOINTS, MORE_SERVICE_PORTS, Room};
pub use side_entry::{SideEntry, SideEntryCounts};
pub use state::Planner;
pub use step::{Plan, Step};
pub use sweep::{Allowed, DatagramFlow, Datagrams, Sweep};
pub use table::{Table, WeightedBackend};

/// Changes since the last plan.
#[derive(Debug, Default)]
pub struct Change {
    /// `None`: the service port was removed.
    pub service_ports: BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>,
    /// The addresses of this node on which NodePorts are open, if they changed.
    pub node_addresses: Option<BTreeSet<IpAddr>>,
    /// All addresses of this node, if they changed: backends there are on this node, even if no
    /// Service says so.
    pub own_addresses: Option<BTreeSet<IpAddr>>,
    /// The SNAT addresses of this node, if they changed.
    pub snat_addresses: Option<BTreeSet<IpAddr>>,
    /// The addresses of the cluster's nodes, from which tunnels are accepted, if they changed.
    pub peers: Option<BTreeSet<IpAddr>>,
    /// What other nodes know of earlier owners.
    pub known_history: Vec<KnownHistory>,
    /// The time, in seconds since the machine started.
    pub now: u32,
}

impl Planner {
    /// Whether a change only adds service ports, and nothing of an earlier agent is to be adopted.
    pub fn only_adds(&self, change: &Change) -> bool {
        let is_new = |(key, port): (&ServicePortKey, &Option<_>)| {
            port.is_some() && !self.held.contains_key(key)
        };
        self.adopted.is_none() && change.service_ports.iter().all(is_new)
    }

    /// Plans a change. What does not fit is reported in the plan's problems; the rest is planned.
    pub fn plan(&mut self, change: Change) -> Plan {
        let mut plan = Plan::default();
        self.now = self.now.max(change.now);
        self.indexes.settle();
        self.regions.settle();
        self.backends.settle();
        self.lend_found(&mut plan);

        if let Some(addresses) = change.node_addresses {
            self.addresses.move_node(addresses, &mut self.bits, &mut plan);
        }
        if let Some(addresses) = change.snat_addresses {
            self.addresses.move_snat(addresses, &mut self.bits, &mut plan);
        }
        if let Some(addresses) = change.own_addresses {
            self.addresses.move_own(addresses.clone());
            self.backends.move_own(addresses);
        }
        if let Some(addresses) = &change.peers {
            self.addresses.exclude_peers(addresses);
        }
        self.nodes = change.peers.or(self.nodes.take());
        // First everything that is added, then everything that is removed: a frontend or backend
        // may get another owner in one change, and must not be retired in between.
        let mut leftovers = Vec::new();
        for (key, wanted) in change.service_ports {
            plan.current = Some(key.clone());
            match wanted {
                Some(wanted) => leftovers.extend(self.publish_service_port(key, wanted, &mut plan)),
                None => leftovers.extend(self.remove_service_port(key, &mut plan)),
            }
        }
        self.move_peers(&mut plan);
        self.learn_history(change.known_history, &mut plan);
        for leftover in leftovers {
            self.retire_leftover(leftover, &mut plan);
        }
        self.addresses.write_entries(&mut plan);
        self.retire_adopted(&mut plan);
        self.backends.write_locations(&mut plan);
        self.expire_history(&mut plan);
        self.compact(&mut plan);
        Self::sweep_flows(&mut plan);
        plan.makes_room = !plan.retire.is_empty() || self.regions.is_settling();
        plan
    }

    /// Accepts tunnels from the cluster's nodes while any service port uses tunnels, and from no
    /// other address: a host that can send from a node's address can send packets with any client's
    /// address.
    fn move_peers(&mut self, plan: &mut Plan) {
        // Until the nodes are known, those of the earlier agent stay.
        let Some(nodes) = &self.nodes else { return };
        let none = BTreeSet::new();
        let wanted = if self.tunnelled > 0 { nodes } else { &none };
        let peer = |address: &IpAddr| SideEntry::Peer(*address);
        plan.prepare.extend(wanted.difference(&self.peers).map(peer).map(Step::SetSideEntry));
        plan.retire.extend(self.peers.difference(wanted).map(peer).map(Step::RemoveSideEntry));
        self.side_entry_counts.peers = wanted.len();
        self.peers = wanted.clone();
    }
}
