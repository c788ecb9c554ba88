//! What follows from a Service's type and policies.

use serde_json::Value;

use super::super::json::{at, flag, list, text, texts};

pub fn kind(service: &Value) -> &str {
    text(service, "spec.type")
}

pub fn needs_cluster_ip(service: &Value) -> bool {
    kind(service) != "ExternalName"
}

pub fn may_have_node_ports(service: &Value) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
}

/// Whether every port must have a node port, even if none is requested.
pub fn needs_node_ports(service: &Value) -> bool {
    match kind(service) {
        "NodePort" => true,
        "LoadBalancer" => {
            at(service, "spec.allocateLoadBalancerNodePorts").is_none()
                || flag(service, "spec.allocateLoadBalancerNodePorts")
        }
        _ => false,
    }
}

pub fn needs_health_check(service: &Value) -> bool {
    kind(service) == "LoadBalancer" && text(service, "spec.externalTrafficPolicy") == "Local"
}

pub fn is_reachable_from_outside(service: &Value) -> bool {
    may_have_node_ports(service)
        || (kind(service) == "ClusterIP" && !list(service, "spec.externalIPs").is_empty())
}

pub fn is_headless(service: &Value) -> bool {
    texts(service, "spec.clusterIPs") == ["None"]
}

pub fn has_selector(service: &Value) -> bool {
    at(service, "spec.selector").and_then(Value::as_object).is_some_and(|map| !map.is_empty())
}
