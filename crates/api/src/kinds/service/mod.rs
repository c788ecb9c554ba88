//! Services.
//!
//! Fields of a Service depend on each other, and are allocated or inferred if a client omits them:
//! `prepare` interprets updates, `families` determines the address families, `allocate` takes
//! addresses and ports. Their tests are in `tests`.

mod allocate;
mod families;
mod prepare;
mod spec;
mod table;
#[cfg(test)]
mod tests;
mod validate;

use jiff::Timestamp;
use serde_json::Value;

use super::json::{get_list_mut, get_text, get_value, remove_value, set_if_missing, set_value};
use super::violation::Violation;
use super::{Allocations, KindRules, Subresource, TableColumn, metadata};
use spec::{is_reachable_from_outside, service_type};

pub use validate::validate_load_balancer_ingress;

pub struct Service;

const AFFINITY_SECONDS: i64 = 10_800;

impl KindRules for Service {
    fn set_defaults(&self, object: &mut Value) {
        set_if_missing(object, "spec.sessionAffinity", "None");
        match get_text(object, "spec.sessionAffinity") {
            "None" => {
                remove_value(object, "spec.sessionAffinityConfig");
            }
            "ClientIP" => {
                let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
                set_if_missing(object, timeout, AFFINITY_SECONDS);
            }
            _ => {}
        }
        set_if_missing(object, "spec.type", "ClusterIP");
        for port in get_list_mut(object, "spec.ports").into_iter().flatten() {
            set_if_missing(port, "protocol", "TCP");
            let target = get_value(port, "targetPort");
            if target.is_none_or(|target| target == 0 || target == "") {
                let number = get_value(port, "port").cloned().unwrap_or_else(|| 0.into());
                set_value(port, "targetPort", number);
            }
        }
        if is_reachable_from_outside(object) {
            set_if_missing(object, "spec.externalTrafficPolicy", "Cluster");
        }
        if ["ClusterIP", "NodePort", "LoadBalancer"].contains(&service_type(object)) {
            set_if_missing(object, "spec.internalTrafficPolicy", "Cluster");
        }
        if service_type(object) == "LoadBalancer" {
            set_if_missing(object, "spec.allocateLoadBalancerNodePorts", true);
            for ingress in get_list_mut(object, "status.loadBalancer.ingress").into_iter().flatten()
            {
                if !get_text(ingress, "ip").is_empty() {
                    set_if_missing(ingress, "ipMode", "VIP");
                }
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::restore_generation(object, old);
        prepare::prepare_service(object, old, subresource);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        validate::validate_service(object, old)
    }

    fn allocate(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        allocations: &mut dyn Allocations,
    ) -> Result<(), Violation> {
        families::resolve_ip_families(object, old, allocations.ranges())?;
        allocate::allocate_cluster_ips(object, old, allocations)?;
        allocate::allocate_ports(object, old, allocations)
    }

    fn reclaim(&self, object: &Value, allocations: &mut dyn Allocations) -> Vec<Violation> {
        allocate::reclaim_allocations(object, allocations)
    }

    fn release(&self, object: &Value, allocations: &mut dyn Allocations) {
        allocate::release_allocations(object, allocations);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        validate::list_service_warnings(object)
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [TableColumn] {
        table::COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        table::service_row(object, now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        metadata::selectable_field(object, path, &["spec.clusterIP", "spec.type"])
    }
}
