//! The end of datagram flows whose backend has left their service port.
//!
//! Datagrams leave a backend that is gone or drains by themselves: its entry says so. But one that
//! other service ports still have in their pools looks to them as it did before, and datagrams, unlike
//! connections, need not come to an end.

use std::collections::{BTreeMap, BTreeSet};

use super::backends::BackendKey;
use super::step::{Plan, Scope, Step};
use super::{Held, Leftover, Planner};
use crate::model::{Protocol, ServicePortKey};

/// Where datagram flows may lead: backends of service ports, all by their indexes. Flows of service
/// ports that are not named are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagrams(BTreeMap<u32, BTreeSet<u32>>);

impl Datagrams {
    pub fn may_stay(&self, service_port: u32, backend: u32) -> bool {
        self.0.get(&service_port).is_none_or(|backends| backends.contains(&backend))
    }
}

impl Planner {
    /// Notes a service port some of whose members have left it for good and are still in use.
    pub(super) fn note_datagrams(&self, leftover: &Leftover, plan: &mut Plan) {
        let owner = &leftover.owner;
        if owner.protocol != Protocol::Udp || leftover.members.is_empty() {
            return;
        }
        let held = self.held.get(owner);
        let gone = leftover.retired.map(|(index, _)| index);
        let Some(index) = held.map(|held| held.index).or(gone) else { return };
        let members = held.map(|held| self.members(owner, held)).unwrap_or_default();
        let in_use = leftover.members.iter().filter_map(|member| self.backends.in_pool(member));
        if in_use.into_iter().any(|backend| !members.contains(&backend)) {
            plan.datagrams.0.insert(index, members);
        }
    }

    /// Notes all service ports: an agent may have ended after its change and before this.
    pub(super) fn note_all_datagrams(&self, gone: &BTreeSet<u32>, plan: &mut Plan) {
        plan.datagrams.0.extend(gone.iter().map(|&index| (index, BTreeSet::new())));
        let held = self.held.iter().filter(|(key, _)| key.protocol == Protocol::Udp);
        plan.datagrams.0.extend(held.map(|(key, held)| (held.index, self.members(key, held))));
    }

    /// Last of all: a flow that ended earlier could begin anew with the same backend.
    pub(super) fn end_datagrams(plan: &mut Plan) {
        if !plan.datagrams.0.is_empty() {
            let datagrams = std::mem::take(&mut plan.datagrams);
            plan.retire.push(Step::EndDatagrams(datagrams));
        }
    }

    /// The backends in a service port's pools, by their indexes.
    fn members(&self, key: &ServicePortKey, held: &Held) -> BTreeSet<u32> {
        let protocol = key.protocol.number();
        let members = Scope::BOTH.into_iter().flat_map(|scope| scope.members(&held.service_port));
        let members = members.map(|m| BackendKey::new(m.address, m.port, protocol));
        members.filter_map(|member| self.backends.index_of(&member)).collect()
    }
}
