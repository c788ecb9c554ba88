//! Finds the service ports whose datagram flows may lead to backends that have left them.
//!
//! The data plane itself moves datagram flows away from a backend that is gone or draining, by its
//! entry. But if other service ports still have the backend in their pools, its entry is unchanged.
//! And datagram flows, unlike connections, need not end.

use std::collections::BTreeSet;

use super::key::{BackendKey, FrontendKey, Scope};
use super::state::{Leftover, Planner, ProgrammedPort};
use super::step::{Plan, Step};

use crate::model::{AddressFamily, Protocol, ServicePortKey};

impl Planner {
    /// Adds a service port if some of its former members are still in use by others.
    pub(super) fn note_datagrams(&self, leftover: &Leftover, plan: &mut Plan) {
        let owner = &leftover.owner;
        if owner.protocol != Protocol::Udp || leftover.members.is_empty() {
            return;
        }
        let held = self.held.get(owner);
        let gone = leftover.retired.map(|(index, _)| index);
        let Some(index) = held.map(|held| held.index).or(gone) else { return };
        let members = held.map(|held| self.members(owner, held)).unwrap_or_default();
        let keys = leftover.members.iter().map(|m| BackendKey::of(m, owner.protocol.number()));
        let in_use = keys.filter_map(|member| self.backends.in_pool(&member));
        if in_use.into_iter().any(|backend| !members.contains(&backend)) {
            plan.sweep.restrict(index, members, &[owner.family]);
        }
    }

    /// Adds service ports with flows that may not stay: an earlier agent may have ended after a
    /// change and before its sweep.
    pub(super) fn note_found_datagrams(
        &self,
        found: &BTreeSet<(u32, u32)>,
        gone: &BTreeSet<u32>,
        plan: &mut Plan,
    ) {
        for (index, _) in found.iter().filter(|(index, _)| gone.contains(index)) {
            plan.sweep.restrict(*index, BTreeSet::new(), &AddressFamily::ALL);
        }
        if found.is_empty() {
            return;
        }
        for (key, held) in self.held.iter().filter(|(key, _)| key.protocol == Protocol::Udp) {
            let flows = found.range((held.index, 0)..=(held.index, u32::MAX));
            let members = self.members(key, held);
            if flows.into_iter().any(|(_, backend)| !members.contains(backend)) {
                plan.sweep.restrict(held.index, members, &[key.family]);
            }
        }
    }

    /// Adds a service port that was removed, given one of its frontends.
    pub(super) fn end_all_datagrams(service_port: u32, frontend: &FrontendKey, plan: &mut Plan) {
        if frontend.protocol == Protocol::Udp.number() {
            let family = AddressFamily::of(&frontend.address);
            plan.sweep.restrict(service_port, BTreeSet::new(), &[family]);
        }
    }

    /// Last, since flows that were ended earlier could be opened again with the same backend.
    pub(super) fn sweep_flows(plan: &mut Plan) {
        let sweep = std::mem::take(&mut plan.sweep);
        if !sweep.is_empty() {
            plan.retire.push(Step::SweepFlows(Box::new(sweep)));
        }
    }

    /// The indexes of the backends in a service port's pools.
    fn members(&self, key: &ServicePortKey, held: &ProgrammedPort) -> BTreeSet<u32> {
        let protocol = key.protocol.number();
        let members = Scope::BOTH.into_iter().flat_map(|scope| scope.members(&held.service_port));
        let members = members.map(|m| BackendKey::new(m.address, m.port, protocol));
        members.filter_map(|member| self.backends.index_of(&member)).collect()
    }
}
