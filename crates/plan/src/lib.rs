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
mod detail;
mod details;
mod exchange;
mod execute;
mod found;
mod frontends;
mod history;
mod key;
mod locations;
mod look;
mod names;
mod pool_table;
mod pools;
mod room;
mod state;
mod step;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_common::slot_history::SlotHistory;
use lb_rules::model::{ServicePort, ServicePortKey};

pub use checksum::of_table as table_checksum;
pub use detail::{Detail, DetailCounts};
pub use exchange::KnownHistory;
pub use execute::{WriteFamily, WriteTables};
pub use found::{FoundBackend, FoundPool, PoolReader, Snapshot};
pub use key::{BackendKey, FrontendKey, Scope, Standing};
pub use room::{MORE_ENDPOINTS, MORE_SERVICE_PORTS, Room};
pub use state::Planner;
pub use step::{Plan, Step};
pub use sweep::{Allowed, DatagramFlow, Datagrams, Sweep};
pub use table::{Table, WeightedBackend};

use frontends::frontend_value;
use pool_table::{Fit, PoolTable};
use pools::Refilled;
use state::{Leftover, ProgrammedPort};

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
            self.backends.move_own(addresses);
        }
        self.nodes = change.peers.or(self.nodes.take());
        // First everything that is added, then everything that is removed: a frontend or backend
        // may get another owner in one change, and must not be retired in between.
        let mut leftovers = Vec::new();
        for (key, wanted) in change.service_ports {
            plan.current = Some(key.clone());
            match wanted {
                Some(wanted) => leftovers.extend(self.put(key, wanted, &mut plan)),
                None => leftovers.extend(self.take_out(key, &mut plan)),
            }
        }
        self.move_peers(&mut plan);
        self.learn_history(change.known_history, &mut plan);
        for leftover in leftovers {
            self.retire(leftover, &mut plan);
        }
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
        let peer = |address: &IpAddr| Detail::Peer(*address);
        plan.prepare.extend(wanted.difference(&self.peers).map(peer).map(Step::SetDetail));
        plan.retire.extend(self.peers.difference(wanted).map(peer).map(Step::RemoveDetail));
        self.detail_counts.peers = wanted.len();
        self.peers = wanted.clone();
    }

    /// Publishes a service port, and returns what it had before and no longer has.
    fn put(
        &mut self,
        key: ServicePortKey,
        mut wanted: Arc<ServicePort>,
        plan: &mut Plan,
    ) -> Option<Leftover> {
        if let Some(held) = self.held.get_mut(&key)
            && held.tables.iter().all(|table| table.fit == Fit::Exact)
            && held.service_port == wanted
        {
            // Equal, but keep the copy that the model has now.
            held.service_port = wanted;
            return None;
        }
        let old = match self.held.remove(&key) {
            Some(held) => held,
            None => self.start(&key, &wanted, plan)?,
        };
        let index = old.index;
        let protocol = key.protocol.number();
        let mut members = Vec::new();
        let tables = Scope::BOTH.map(|scope| {
            match self.refill(index, scope, protocol, &old, &mut wanted, plan) {
                Refilled::Kept(table) => table,
                Refilled::Replaced(table) => {
                    members.extend(scope.members(&old.service_port));
                    table
                }
            }
        });
        // Before members that left the pools are released, so that they stay.
        let draining = wanted.draining.iter();
        let draining: Vec<BackendKey> = draining
            .map(|member| BackendKey::new(member.address, member.port, protocol))
            .filter(|member| self.backends.keep(member))
            .collect();

        if !old.is_named {
            plan.prepare.push(Step::SetDetail(names::detail(index, &key)));
        }
        let details = self.details(index, protocol, &wanted);
        self.detail_counts.replace(&old.details, &details);
        plan.prepare.extend(details.difference(&old.details).cloned().map(Step::SetDetail));

        let value = frontend_value(index, &wanted);
        let republish = frontend_value(index, &old.service_port) != value;
        for frontend in &wanted.frontends {
            if republish || !old.service_port.frontends.contains(frontend) {
                let frontend_key = FrontendKey::new(frontend.address, frontend.port, protocol);
                self.publish_frontend(frontend_key, &key, frontend.kind, value, plan);
            }
        }

        let frontends = old.service_port.frontends.iter();
        let kept: BTreeSet<_> = wanted.frontends.iter().map(|f| (f.address, f.port)).collect();
        let table = tables[Scope::Cluster as usize];
        let history = self.next_history(&old, &wanted, &table, &draining, protocol);
        self.replace_history(index, &old.history, &history, plan);
        let leftover = Leftover {
            frontends: frontends
                .filter(|f| !kept.contains(&(f.address, f.port)))
                .map(|f| FrontendKey::new(f.address, f.port, protocol))
                .collect(),
            members: members.into_iter().copied().collect(),
            draining: old.draining,
            details: old.details.difference(&details).cloned().collect(),
            owner: key.clone(),
            retired: None,
        };
        self.tunnelled += usize::from(wanted.is_tunnelled());
        self.tunnelled -= usize::from(old.service_port.is_tunnelled());
        let service_port = wanted;
        let checksum = checksum_of(&key, &service_port, &table);
        self.table_checksum = self.table_checksum.wrapping_sub(old.checksum).wrapping_add(checksum);
        let held = ProgrammedPort {
            index,
            service_port,
            tables,
            draining,
            details,
            is_named: true,
            checksum,
            history,
        };
        self.held.insert(key, held);
        Some(leftover)
    }

    /// Removes a service port, and returns all that it had.
    fn take_out(&mut self, key: ServicePortKey, plan: &mut Plan) -> Option<Leftover> {
        let held = self.held.remove(&key)?;
        self.replace_history(held.index, &held.history, &SlotHistory::default(), plan);
        self.detail_counts.replace(&held.details, &BTreeSet::new());
        let protocol = key.protocol.number();
        let service_port = &held.service_port;
        self.table_checksum = self.table_checksum.wrapping_sub(held.checksum);
        self.tunnelled -= usize::from(service_port.is_tunnelled());
        let frontends = service_port.frontends.iter();
        let members = service_port.cluster.iter().chain(&service_port.local);
        Some(Leftover {
            frontends: frontends.map(|f| FrontendKey::new(f.address, f.port, protocol)).collect(),
            members: members.copied().collect(),
            draining: held.draining,
            details: held.details.iter().cloned().collect(),
            owner: key,
            retired: Some((held.index, held.tables)),
        })
    }

    fn retire(&mut self, leftover: Leftover, plan: &mut Plan) {
        for &frontend in &leftover.frontends {
            self.retire_frontend(frontend, &leftover.owner, plan);
        }
        let held = self.held.get(&leftover.owner);
        let replaced =
            |detail: &Detail| held.is_some_and(|held| detail.is_replaced_in(&held.details));
        let gone = leftover.details.iter().filter(|detail| !replaced(detail)).cloned();
        plan.retire.extend(gone.map(Step::RemoveDetail));
        if let Some((index, tables)) = leftover.retired {
            plan.retire.push(Step::RemoveDetail(names::detail(index, &leftover.owner)));
            for scope in Scope::BOTH {
                self.empty_pool(index, scope, tables[scope as usize], plan);
            }
            self.indexes.give_back(index);
        }
        let protocol = leftover.owner.protocol.number();
        for member in &leftover.members {
            self.backends.release(member, protocol, &mut self.bits, plan);
        }
        self.note_datagrams(&leftover, plan);
        for member in leftover.draining {
            self.backends.let_go(member, &mut self.bits, plan);
        }
    }

    /// Returns a service port that is not held yet: one taken over, or an empty one with an index.
    fn start(
        &mut self,
        key: &ServicePortKey,
        wanted: &ServicePort,
        plan: &mut Plan,
    ) -> Option<ProgrammedPort> {
        if let Some(held) = self.take_over(key, wanted, plan) {
            return Some(held);
        }
        let untouched = self.indexes.untouched();
        let Some(index) = self.indexes.take() else {
            let all = self.room.service_ports;
            plan.lack(key, format!("all {all} service ports are in use; {MORE_SERVICE_PORTS}"));
            return None;
        };
        // The counters of an index that was never used are zero.
        if index < untouched || self.has_adopted {
            plan.prepare.push(Step::ResetServiceTraffic { index });
        }
        Some(ProgrammedPort::empty(index))
    }
}

/// What a service port adds to the checksum of all tables. A table that follows from topology hints
/// may differ from node to node, so it is left out.
fn checksum_of(key: &ServicePortKey, service_port: &ServicePort, table: &PoolTable) -> u64 {
    if service_port.is_hinted || table.region.size == 0 {
        return 0;
    }
    let protocol = key.protocol.number();
    let backends = service_port.cluster.iter();
    let backends =
        backends.map(|member| (BackendKey::of(member, protocol).identity(), member.weight));
    checksum::of_port(key, checksum::of_table(table.region.size, backends))
}
