//! Interprets an update of a Service: clients omit what was allocated for them, and change the type
//! without removing fields that no longer apply.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::Subresource;
use super::super::json::{at, copy, list, list_mut, number, remove, set, text, texts};
use super::spec::{
    is_reachable_from_outside, kind, may_have_node_ports, needs_cluster_ip, needs_health_check,
    needs_node_ports,
};

/// Whether a Service may have a field.
type Condition = fn(&Value) -> bool;

pub fn prepare(service: &mut Value, old: Option<&Value>, subresource: Subresource) {
    match (old, subresource) {
        (None, _) => {
            set(service, "status", serde_json::json!({ "loadBalancer": {} }));
            name_addresses(service, None);
        }
        (Some(old), Subresource::Status) => copy(service, old, "spec"),
        (Some(old), _) => {
            copy(service, old, "status");
            keep_allocated(service, old);
            name_addresses(service, Some(old));
            wipe(service, old);
        }
    }
}

/// Restores allocated values that the client did not send.
fn keep_allocated(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if text(service, "spec.clusterIP").is_empty() {
            copy(service, old, "spec.clusterIP");
        }
        if list(service, "spec.clusterIPs").is_empty() {
            copy(service, old, "spec.clusterIPs");
        }
    }
    if needs_node_ports(service) && needs_node_ports(old) {
        keep_node_ports(service, old);
    }
    if needs_health_check(service)
        && needs_health_check(old)
        && number(service, "spec.healthCheckNodePort") == 0
    {
        copy(service, old, "spec.healthCheckNodePort");
    }
}

/// Ports are identified by name, unless another port now has their node port.
fn keep_node_ports(service: &mut Value, old: &Value) {
    let kept = &node_ports(service) & &node_ports(old);
    for port in list_mut(service, "spec.ports").into_iter().flatten() {
        if number(port, "nodePort") != 0 {
            continue;
        }
        let before = list(old, "spec.ports")
            .iter()
            .rfind(|before| text(before, "name") == text(port, "name"))
            .map_or(0, |before| number(before, "nodePort"));
        if before != 0 && !kept.contains(&before) {
            set(port, "nodePort", before);
        }
    }
}

pub fn node_ports(service: &Value) -> BTreeSet<i64> {
    let ports = list(service, "spec.ports").iter().map(|port| number(port, "nodePort"));
    ports.filter(|port| *port != 0).collect()
}

/// `clusterIP` and `clusterIPs` have the same meaning. Older clients send only the former.
fn name_addresses(service: &mut Value, old: Option<&Value>) {
    let single = text(service, "spec.clusterIP").to_owned();
    let of_single = |service: &mut Value| set(service, "spec.clusterIPs", vec![single.clone()]);
    let Some(old) = old else {
        if !single.is_empty() && list(service, "spec.clusterIPs").is_empty() {
            of_single(service);
        }
        return;
    };
    if single != text(old, "spec.clusterIP")
        && texts(service, "spec.clusterIPs") == texts(old, "spec.clusterIPs")
    {
        if single.is_empty() {
            remove(service, "spec.clusterIPs");
        } else {
            of_single(service);
        }
    }
}

/// Removes fields that applied to the old type, do not apply to the new one, and were not changed
/// by the client. Validation reports those that the client changed.
fn wipe(service: &mut Value, old: &Value) {
    let is_same = |service: &Value, path: &str| at(service, path) == at(old, path);
    if needs_cluster_ip(old) && !needs_cluster_ip(service) {
        if is_same(service, "spec.clusterIP") && is_same(service, "spec.clusterIPs") {
            remove(service, "spec.clusterIP");
            remove(service, "spec.clusterIPs");
        }
        for path in ["spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if is_same(service, path) {
                remove(service, path);
            }
        }
    }
    if may_have_node_ports(old)
        && !may_have_node_ports(service)
        && node_ports(service).is_subset(&node_ports(old))
    {
        for port in list_mut(service, "spec.ports").into_iter().flatten() {
            remove(port, "nodePort");
        }
    }
    let is_balancer = |service: &Value| kind(service) == "LoadBalancer";
    let dependent: [(&str, Condition); 4] = [
        ("spec.healthCheckNodePort", needs_health_check),
        ("spec.allocateLoadBalancerNodePorts", is_balancer),
        ("spec.loadBalancerClass", is_balancer),
        ("spec.externalTrafficPolicy", is_reachable_from_outside),
    ];
    // Decided for all fields before any is removed: the policy determines whether the health check
    // applies.
    let obsolete: Vec<&str> = dependent
        .into_iter()
        .filter(|(path, goes_with)| goes_with(old) && !goes_with(service) && is_same(service, path))
        .map(|(path, _)| path)
        .collect();
    for path in obsolete {
        remove(service, path);
    }
    if !is_balancer(service) {
        set(service, "status.loadBalancer", serde_json::json!({}));
    }
}
