//! What follows from a Service's type and policies.

use serde_json::Value;

use super::super::json::{get_flag, get_list, get_text, get_texts, get_value};

pub fn service_type(service: &Value) -> &str {
    get_text(service, "spec.type")
}

pub(crate) fn needs_cluster_ip(service: &Value) -> bool {
    service_type(service) != "ExternalName"
}

pub(crate) fn may_have_node_ports(service: &Value) -> bool {
    matches!(service_type(service), "NodePort" | "LoadBalancer")
}

/// Whether every port must have a node port, even if none is requested.
pub(crate) fn needs_node_ports(service: &Value) -> bool {
    match service_type(service) {
        "NodePort" => true,
        "LoadBalancer" => {
            get_value(service, "spec.allocateLoadBalancerNodePorts").is_none()
                || get_flag(service, "spec.allocateLoadBalancerNodePorts")
        }
        _ => false,
    }
}

pub(crate) fn needs_health_check(service: &Value) -> bool {
    service_type(service) == "LoadBalancer"
        && get_text(service, "spec.externalTrafficPolicy") == "Local"
}

pub(crate) fn is_reachable_from_outside(service: &Value) -> bool {
    may_have_node_ports(service)
        || (service_type(service) == "ClusterIP"
            && !get_list(service, "spec.externalIPs").is_empty())
}

pub(crate) fn is_headless(service: &Value) -> bool {
    get_texts(service, "spec.clusterIPs") == ["None"]
}

pub(crate) fn has_selector(service: &Value) -> bool {
    get_value(service, "spec.selector")
        .and_then(Value::as_object)
        .is_some_and(|map| !map.is_empty())
}
