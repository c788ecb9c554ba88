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

use super::json::{at, list_mut, remove, set, set_default, text};
use super::violation::Violation;
use super::{Allocations, Column, Rules, Subresource, metadata};
use spec::{is_reachable_from_outside, kind};

pub use validate::validate_load_balancer_point;

pub struct Service;

const AFFINITY_SECONDS: i64 = 10_800;

impl Rules for Service {
    fn set_defaults(&self, object: &mut Value) {
        set_default(object, "spec.sessionAffinity", "None");
        match text(object, "spec.sessionAffinity") {
            "None" => {
                remove(object, "spec.sessionAffinityConfig");
            }
            "ClientIP" => {
                let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
                set_default(object, timeout, AFFINITY_SECONDS);
            }
            _ => {}
        }
        set_default(object, "spec.type", "ClusterIP");
        for port in list_mut(object, "spec.ports").into_iter().flatten() {
            set_default(port, "protocol", "TCP");
            let target = at(port, "targetPort");
            if target.is_none_or(|target| target == 0 || target == "") {
                let number = at(port, "port").cloned().unwrap_or_else(|| 0.into());
                set(port, "targetPort", number);
            }
        }
        if is_reachable_from_outside(object) {
            set_default(object, "spec.externalTrafficPolicy", "Cluster");
        }
        if ["ClusterIP", "NodePort", "LoadBalancer"].contains(&kind(object)) {
            set_default(object, "spec.internalTrafficPolicy", "Cluster");
        }
        if kind(object) == "LoadBalancer" {
            set_default(object, "spec.allocateLoadBalancerNodePorts", true);
            for ingress in list_mut(object, "status.loadBalancer.ingress").into_iter().flatten() {
                if !text(ingress, "ip").is_empty() {
                    set_default(ingress, "ipMode", "VIP");
                }
            }
        }
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>, subresource: Subresource) {
        metadata::keep_generation(object, old);
        prepare::prepare(object, old, subresource);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Violation> {
        validate::validate(object, old)
    }

    fn allocate(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        allocations: &mut dyn Allocations,
    ) -> Result<(), Violation> {
        families::resolve(object, old, allocations.ranges())?;
        allocate::addresses(object, old, allocations)?;
        allocate::ports(object, old, allocations)
    }

    fn reclaim(&self, object: &Value, allocations: &mut dyn Allocations) -> Vec<Violation> {
        allocate::reclaim(object, allocations)
    }

    fn release(&self, object: &Value, allocations: &mut dyn Allocations) {
        allocate::release(object, allocations);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        validate::warnings(object)
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        table::COLUMNS
    }

    fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        table::row(object, now)
    }

    fn field(&self, object: &Value, path: &str) -> Option<String> {
        metadata::field(object, path, &["spec.clusterIP", "spec.type"])
    }
}
