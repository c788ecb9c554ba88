//! Interprets an update of a Service: clients omit what was allocated for them, and change the type
//! without removing fields that no longer apply.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::Subresource;
use super::super::json::{
    copy_value, get_list, get_list_mut, get_number, get_text, get_texts, get_value, remove_value,
    set_value,
};
use super::spec::{
    is_reachable_from_outside, may_have_node_ports, needs_cluster_ip, needs_health_check,
    needs_node_ports, service_type,
};

/// Whether a Service may have a field.
type Condition = fn(&Value) -> bool;

pub(crate) fn prepare_service(service: &mut Value, old: Option<&Value>, subresource: Subresource) {
    if !needs_cluster_ip(service) {
        // API servers once set it for all types, and do not show it since.
        remove_value(service, "spec.internalTrafficPolicy");
    }
    match (old, subresource) {
        (None, _) => {
            set_value(service, "status", serde_json::json!({ "loadBalancer": {} }));
            name_addresses(service, None);
        }
        (Some(old), Subresource::Status) => copy_value(service, old, "spec"),
        (Some(old), _) => {
            copy_value(service, old, "status");
            keep_allocated(service, old);
            name_addresses(service, Some(old));
            wipe(service, old);
        }
    }
}

/// Restores allocated values that the client did not send.
fn keep_allocated(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if get_text(service, "spec.clusterIP").is_empty() {
            copy_value(service, old, "spec.clusterIP");
        }
        if get_list(service, "spec.clusterIPs").is_empty() {
            copy_value(service, old, "spec.clusterIPs");
        }
    }
    if needs_node_ports(service) && needs_node_ports(old) {
        keep_node_ports(service, old);
    }
    if needs_health_check(service)
        && needs_health_check(old)
        && get_number(service, "spec.healthCheckNodePort") == 0
    {
        copy_value(service, old, "spec.healthCheckNodePort");
    }
}

/// Ports are identified by name, unless another port now has their node port.
fn keep_node_ports(service: &mut Value, old: &Value) {
    let kept = &list_node_ports(service) & &list_node_ports(old);
    for port in get_list_mut(service, "spec.ports").into_iter().flatten() {
        if get_number(port, "nodePort") != 0 {
            continue;
        }
        let before = get_list(old, "spec.ports")
            .iter()
            .rfind(|before| get_text(before, "name") == get_text(port, "name"))
            .map_or(0, |before| get_number(before, "nodePort"));
        if before != 0 && !kept.contains(&before) {
            set_value(port, "nodePort", before);
        }
    }
}

pub(crate) fn list_node_ports(service: &Value) -> BTreeSet<i64> {
    let ports = get_list(service, "spec.ports").iter().map(|port| get_number(port, "nodePort"));
    ports.filter(|port| *port != 0).collect()
}

/// `clusterIP` and `clusterIPs` have the same meaning. Older clients send only the former.
fn name_addresses(service: &mut Value, old: Option<&Value>) {
    let single = get_text(service, "spec.clusterIP").to_owned();
    let of_single =
        |service: &mut Value| set_value(service, "spec.clusterIPs", vec![single.clone()]);
    let Some(old) = old else {
        if !single.is_empty() && get_list(service, "spec.clusterIPs").is_empty() {
            of_single(service);
        }
        return;
    };
    if single != get_text(old, "spec.clusterIP")
        && get_texts(service, "spec.clusterIPs") == get_texts(old, "spec.clusterIPs")
    {
        if single.is_empty() {
            remove_value(service, "spec.clusterIPs");
        } else {
            of_single(service);
        }
    }
}

/// Removes fields that applied to the old type, do not apply to the new one, and were not changed
/// by the client. Validation reports those that the client changed.
fn wipe(service: &mut Value, old: &Value) {
    let is_same = |service: &Value, path: &str| get_value(service, path) == get_value(old, path);
    if needs_cluster_ip(old) && !needs_cluster_ip(service) {
        if is_same(service, "spec.clusterIP") && is_same(service, "spec.clusterIPs") {
            remove_value(service, "spec.clusterIP");
            remove_value(service, "spec.clusterIPs");
        }
        for path in ["spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if is_same(service, path) {
                remove_value(service, path);
            }
        }
    }
    if may_have_node_ports(old)
        && !may_have_node_ports(service)
        && list_node_ports(service).is_subset(&list_node_ports(old))
    {
        for port in get_list_mut(service, "spec.ports").into_iter().flatten() {
            remove_value(port, "nodePort");
        }
    }
    let is_balancer = |service: &Value| service_type(service) == "LoadBalancer";
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
        remove_value(service, path);
    }
    if !is_balancer(service) {
        set_value(service, "status.loadBalancer", serde_json::json!({}));
    }
}
