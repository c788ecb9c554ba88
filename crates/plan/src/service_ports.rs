//! Service ports that come, change and go: what is written for each, and what it leaves over.

use std::collections::BTreeSet;
use std::sync::Arc;

use lb_common::layout::{self, Forwarding};
use lb_rules::model::{Backend, ServicePort, ServicePortKey};

use super::checksum;
use super::frontends::frontend_value;
use super::key::{BackendKey, FrontendKey, Scope};
use super::names;
use super::pool_table::{Fit, PoolTable};
use super::pools::Refilled;
use super::room::MORE_SERVICE_PORTS;
use super::side_entry::SideEntry;
use super::state::{Leftover, Planner, ProgrammedPort};
use super::step::{Plan, Step};

impl Planner {
    /// Publishes a service port, and returns what it had before and no longer has.
    pub(super) fn publish_service_port(
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
            None => self.begin_service_port(&key, &wanted, plan)?,
        };
        let protocol = key.protocol.number();
        let (tables, replaced_members) = self.refill_pools(&old, protocol, &mut wanted, plan);
        // Before members that left the pools are released, so that they stay.
        let draining = self.keep_draining(&wanted, protocol);
        let side_entries = self.write_side_entries(&key, &old, &wanted, plan);
        self.publish_frontends(&key, &old, &wanted, plan);
        self.addresses.move_assigned(old.index, &old.service_port, &wanted);
        let table = tables[Scope::Cluster as usize];
        let history = self.change_history(&old, &wanted, &table, &draining, protocol, plan);
        let new = ProgrammedPort {
            index: old.index,
            checksum: checksum_of(&key, &wanted, &table),
            service_port: wanted,
            tables,
            draining,
            side_entries,
            is_named: true,
            history,
        };
        self.tunnelled += usize::from(new.service_port.is_tunnelled());
        self.tunnelled -= usize::from(old.service_port.is_tunnelled());
        self.table_checksum =
            self.table_checksum.wrapping_sub(old.checksum).wrapping_add(new.checksum);
        let leftover = Leftover::of_change(&key, old, &new, replaced_members);
        self.held.insert(key, new);
        Some(leftover)
    }

    /// Writes both pools. Returns their tables, and the former members of those that were replaced.
    fn refill_pools(
        &mut self,
        old: &ProgrammedPort,
        protocol: u8,
        wanted: &mut Arc<ServicePort>,
        plan: &mut Plan,
    ) -> ([PoolTable; 2], Vec<Backend>) {
        let mut replaced = Vec::new();
        let tables = Scope::BOTH.map(|scope| {
            match self.refill(old.index, scope, protocol, old, wanted, plan) {
                Refilled::Kept(table) => table,
                Refilled::Replaced(table) => {
                    replaced.extend(scope.members(&old.service_port));
                    table
                }
            }
        });
        (tables, replaced)
    }

    /// Keeps the draining endpoints that the kernel has.
    fn keep_draining(&mut self, wanted: &ServicePort, protocol: u8) -> Vec<BackendKey> {
        let draining = wanted.draining.iter();
        draining
            .map(|member| BackendKey::new(member.address, member.port, protocol))
            .filter(|member| self.backends.keep(member))
            .collect()
    }

    /// Writes the name and the side entries that are new. Returns all side entries.
    fn write_side_entries(
        &mut self,
        key: &ServicePortKey,
        old: &ProgrammedPort,
        wanted: &ServicePort,
        plan: &mut Plan,
    ) -> BTreeSet<SideEntry> {
        if !old.is_named {
            plan.prepare.push(Step::SetSideEntry(names::side_entry(old.index, key)));
        }
        let entries = self.side_entries(old.index, key.protocol.number(), wanted);
        self.side_entry_counts.replace(&old.side_entries, &entries);
        let new = entries.difference(&old.side_entries).cloned();
        plan.prepare.extend(new.map(Step::SetSideEntry));
        entries
    }

    /// Publishes the frontends that are new, or all of them if their common fields have changed.
    fn publish_frontends(
        &mut self,
        key: &ServicePortKey,
        old: &ProgrammedPort,
        wanted: &ServicePort,
        plan: &mut Plan,
    ) {
        let value = frontend_value(old.index, wanted);
        let all = frontend_value(old.index, &old.service_port) != value
            || old.service_port.lent != wanted.lent;
        for frontend in &wanted.frontends {
            if all || !old.service_port.frontends.contains(frontend) {
                let protocol = key.protocol.number();
                let frontend_key = FrontendKey::new(frontend.address, frontend.port, protocol);
                let value = if wanted.lent.contains(&frontend.address) {
                    layout::Frontend { forwarding: Forwarding::Masquerade as u8, ..value }
                } else {
                    value
                };
                self.publish_frontend(frontend_key, key, frontend.kind, value, plan);
            }
        }
    }

    /// Removes a service port, and returns all that it had.
    pub(super) fn remove_service_port(
        &mut self,
        key: ServicePortKey,
        plan: &mut Plan,
    ) -> Option<Leftover> {
        let old = self.held.remove(&key)?;
        self.remove_history(&old, plan);
        self.addresses.move_assigned(old.index, &old.service_port, &ServicePort::default());
        self.side_entry_counts.replace(&old.side_entries, &BTreeSet::new());
        self.table_checksum = self.table_checksum.wrapping_sub(old.checksum);
        self.tunnelled -= usize::from(old.service_port.is_tunnelled());
        Some(Leftover::of_removal(key, old))
    }

    /// Retires what a service port no longer has, unless another one has taken it.
    pub(super) fn retire_leftover(&mut self, leftover: Leftover, plan: &mut Plan) {
        for &frontend in &leftover.frontends {
            self.retire_frontend(frontend, &leftover.owner, plan);
        }
        let held = self.held.get(&leftover.owner);
        let replaced =
            |entry: &SideEntry| held.is_some_and(|held| entry.is_replaced_in(&held.side_entries));
        let gone = leftover.side_entries.iter().filter(|entry| !replaced(entry)).cloned();
        plan.retire.extend(gone.map(Step::RemoveSideEntry));
        if let Some((index, tables)) = leftover.retired {
            let name = names::side_entry(index, &leftover.owner);
            plan.retire.push(Step::RemoveSideEntry(name));
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
            self.backends.release_draining(member, &mut self.bits, plan);
        }
    }

    /// Returns a service port that is not held yet: one taken over, or an empty one with an index.
    fn begin_service_port(
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

impl Leftover {
    /// What a service port had and `new` no longer has. `members`: those of its pools that were replaced.
    fn of_change(
        owner: &ServicePortKey,
        old: ProgrammedPort,
        new: &ProgrammedPort,
        members: Vec<Backend>,
    ) -> Self {
        let kept = new.service_port.frontends.iter();
        let kept: BTreeSet<_> = kept.map(|f| (f.address, f.port)).collect();
        let gone = old.service_port.frontends.iter();
        Self {
            frontends: gone
                .filter(|f| !kept.contains(&(f.address, f.port)))
                .map(|f| FrontendKey::new(f.address, f.port, owner.protocol.number()))
                .collect(),
            members,
            draining: old.draining,
            side_entries: old.side_entries.difference(&new.side_entries).cloned().collect(),
            owner: owner.clone(),
            retired: None,
        }
    }

    fn of_removal(owner: ServicePortKey, old: ProgrammedPort) -> Self {
        let protocol = owner.protocol.number();
        let frontends = old.service_port.frontends.iter();
        let members = old.service_port.cluster.iter().chain(&old.service_port.local);
        Self {
            frontends: frontends.map(|f| FrontendKey::new(f.address, f.port, protocol)).collect(),
            members: members.copied().collect(),
            draining: old.draining,
            side_entries: old.side_entries.into_iter().collect(),
            owner,
            retired: Some((old.index, old.tables)),
        }
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
