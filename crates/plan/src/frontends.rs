//! Frontends and their owners. A frontend may move from one service port to another in one change.

use lb_common::layout::{self, FrontendKind};
use lb_rules::model::{ServicePort, ServicePortKey, TrafficPolicy};

use super::key::{FrontendKey, Scope};
use super::state::{Owner, Planner};
use super::step::{Plan, Step};

impl Planner {
    pub(super) fn publish_frontend(
        &mut self,
        frontend: FrontendKey,
        owner: &ServicePortKey,
        kind: FrontendKind,
        value: layout::Frontend,
        plan: &mut Plan,
    ) {
        let owner = Owner { service_port: owner.clone(), kind };
        let old = self.owners.insert(frontend, owner);
        if old.is_none() && !frontend.is_node_port() {
            self.bits.add_destination(frontend.address, plan);
        }
        let was_cluster = old.is_some_and(|old| old.kind == FrontendKind::ClusterIp);
        match (was_cluster, kind == FrontendKind::ClusterIp) {
            (false, true) => self.addresses.add_cluster(frontend.address),
            (true, false) => self.addresses.remove_cluster(frontend.address),
            _ => {}
        }
        let value = layout::Frontend { kind: kind as u8, ..value };
        plan.set_frontend(frontend, value);
    }

    pub(super) fn retire_frontend(
        &mut self,
        frontend: FrontendKey,
        owner: &ServicePortKey,
        plan: &mut Plan,
    ) {
        if self.owner(&frontend) != Some(owner) {
            return;
        }
        let owned = self.owners.remove(&frontend);
        plan.retire.push(Step::RemoveFrontend { key: frontend });
        if owned.is_some_and(|owned| owned.kind == FrontendKind::ClusterIp) {
            self.addresses.remove_cluster(frontend.address);
        }
        if !frontend.is_node_port() {
            self.bits.remove_destination(frontend.address, plan);
        }
    }
}

/// The fields that all frontends of a service port share. `kind` differs between them.
pub(super) fn frontend_value(index: u32, service_port: &ServicePort) -> layout::Frontend {
    layout::Frontend {
        service_port: index,
        cluster_pool: Scope::Cluster.pool_index(index),
        local_pool: Scope::Local.pool_index(index),
        // The API's limit, one day, fits.
        affinity: service_port.affinity.map_or(0, |time| time.as_secs() as u32),
        kind: 0,
        external_local: (service_port.external_policy == TrafficPolicy::Local) as u8,
        internal_local: (service_port.internal_policy == TrafficPolicy::Local) as u8,
        restricted: u8::from(!service_port.source_ranges.is_empty()),
        populated: u8::from(service_port.populated),
        forwarding: service_port.forwarding as u8,
        silence: 0,
        reserved: 0,
    }
}
