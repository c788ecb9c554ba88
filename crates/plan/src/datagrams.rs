//! Finds the service ports whose datagram flows may use backends or frontends that have left them.
//!
//! The data plane itself moves datagram flows away from a backend that is gone or draining, by its
//! entry. But if other service ports still have the backend in their pools, its entry is unchanged.
//! And datagram flows, unlike connections, need not end: without a sweep, a client's flow would also
//! keep its frontend away from another Service that has got it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::key::{BackendKey, FrontendKey, Scope};
use super::state::{Leftover, Planner, ProgrammedPort};
use super::step::{Plan, Step};
use super::sweep::{Allowed, DatagramFlow};

use lb_rules::model::{AddressFamily, Protocol, ServicePortKey};

impl Planner {
    /// Adds a service port if some of its former members are still in use by others, or if it is
    /// still there and has lost a frontend.
    pub(super) fn note_datagrams(&self, leftover: &Leftover, plan: &mut Plan) {
        let owner = &leftover.owner;
        let is_reduced = !leftover.members.is_empty() || !leftover.frontends.is_empty();
        if owner.protocol != Protocol::Udp || !is_reduced {
            return;
        }
        let held = self.held.get(owner);
        let gone = leftover.retired.map(|(index, _)| index);
        let Some(index) = held.map(|held| held.index).or(gone) else { return };
        let allowed = held.map(|held| self.allowed(owner, held)).unwrap_or_default();
        let lost_frontend = held.is_some() && !leftover.frontends.is_empty();
        let keys = leftover.members.iter().map(|m| BackendKey::of(m, owner.protocol.number()));
        let in_use = keys.filter_map(|member| self.backends.in_pool(&member));
        if lost_frontend || in_use.into_iter().any(|backend| !allowed.backends.contains(&backend)) {
            plan.sweep.restrict(index, allowed, &[owner.family]);
        }
    }

    /// Adds service ports with flows that may not stay: an earlier agent may have ended after a
    /// change and before its sweep.
    pub(super) fn note_found_datagrams(
        &self,
        found: &BTreeSet<DatagramFlow>,
        gone: &BTreeSet<u32>,
        plan: &mut Plan,
    ) {
        for flow in found.iter().filter(|flow| gone.contains(&flow.service_port)) {
            plan.sweep.restrict(flow.service_port, Allowed::default(), &AddressFamily::ALL);
        }
        if found.is_empty() {
            return;
        }
        for (key, held) in self.held.iter().filter(|(key, _)| key.protocol == Protocol::Udp) {
            let mut flows = found.range(first_of(held.index)..first_of(held.index + 1)).peekable();
            if flows.peek().is_none() {
                continue;
            }
            let allowed = self.allowed(key, held);
            if !flows.all(|flow| allowed.allows(flow)) {
                plan.sweep.restrict(held.index, allowed, &[key.family]);
            }
        }
    }

    /// Adds a service port that was removed, given one of its frontends.
    pub(super) fn end_all_datagrams(service_port: u32, frontend: &FrontendKey, plan: &mut Plan) {
        if frontend.protocol == Protocol::Udp.number() {
            let family = AddressFamily::of(&frontend.address);
            plan.sweep.restrict(service_port, Allowed::default(), &[family]);
        }
    }

    /// Last, since flows that were ended earlier could be opened again with the same backend.
    pub(super) fn sweep_flows(plan: &mut Plan) {
        let sweep = std::mem::take(&mut plan.sweep);
        if !sweep.is_empty() {
            plan.retire.push(Step::SweepFlows(Box::new(sweep)));
        }
    }

    /// The backends in a service port's pools, and its frontends.
    fn allowed(&self, key: &ServicePortKey, held: &ProgrammedPort) -> Allowed {
        let protocol = key.protocol.number();
        let members = Scope::BOTH.into_iter().flat_map(|scope| scope.members(&held.service_port));
        let members = members.map(|m| BackendKey::of(m, protocol));
        let frontends = held.service_port.frontends.iter();
        Allowed {
            backends: members.filter_map(|member| self.backends.index_of(&member)).collect(),
            frontends: frontends.map(|f| SocketAddr::new(f.address, f.port)).collect(),
        }
    }
}

/// Sorts before all flows of a service port.
fn first_of(service_port: u32) -> DatagramFlow {
    let frontend = SocketAddr::new(AddressFamily::V4.unspecified(), 0);
    DatagramFlow { service_port, backend: 0, frontend }
}
