//! Whether load balancers may send new traffic to a node.

use k8s_openapi::api::core::v1::Node;

/// The taint by which the cluster's autoscaler announces a deletion.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// False for a node that is being deleted.
pub fn is_eligible(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let mut taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    node.metadata.deletion_timestamp.is_none() && !taints.any(|taint| taint.key == TO_BE_DELETED)
}

/// By this label load balancers are kept away from a node.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// What kubelet writes into the condition `Ready` while it ends pods because the machine shuts down.
const SHUTDOWN: &str = "node is shutting down";

/// Whether kubelet has reported that the machine shuts down.
pub fn is_shutting_down(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.type_ == "Ready" && condition.status == "False" && message.contains(SHUTDOWN)
    })
}

/// Whether the network plugin or cloud has reported that pods of the node can't be reached.
fn is_network_unavailable(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == "NetworkUnavailable" && one.status == "True")
}

/// Whether clients can be led to the node's own addresses: it is ready, and neither excluded nor being deleted. A
/// cordoned node goes on serving: its clients know its address.
pub(crate) fn is_healthy(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_unready = |status: &str| ["False", "Unknown"].contains(&status);
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = !conditions.any(|one| one.type_ == "Ready" && is_unready(&one.status));
    is_ready && may_lend(node) && !is_network_unavailable(node)
}

/// Whether a node's own addresses may be those of Services at all: it is neither excluded nor being deleted.
pub(crate) fn may_lend(node: &Node) -> bool {
    is_eligible(node) && !is_excluded(node)
}

fn is_excluded(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
}

/// False for a node that is excluded, cordoned for a drain, shutting down, being deleted, or without
/// a network for its pods: its addresses move to another node beforehand.
pub(crate) fn is_preferred_for_load_balancers(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let is_cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
    is_eligible(node)
        && !is_excluded(node)
        && !is_cordoned
        && !is_shutting_down(node)
        && !is_network_unavailable(node)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn eligible(node: Value) -> bool {
        is_eligible(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_node_that_is_being_deleted_is_not_eligible() {
        assert!(eligible(json!({"metadata": {"name": "a"}})));
        let tainted = |key| {
            let taints = json!([{"key": key, "effect": "NoSchedule"}]);
            json!({"metadata": {"name": "a"}, "spec": {"taints": taints}})
        };
        assert!(eligible(tainted("node.kubernetes.io/unschedulable")), "its pods still serve");
        assert!(!eligible(tainted("ToBeDeletedByClusterAutoscaler")));
        let deleted = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert!(!eligible(json!({"metadata": deleted})));
    }

    #[test]
    fn a_node_that_shuts_down_says_so_in_its_condition() {
        let of = |kind: &str, status: &str, message: &str| {
            let condition = json!({"type": kind, "status": status, "message": message});
            let node = json!({"status": {"conditions": [condition]}});
            is_shutting_down(&serde_json::from_value(node).unwrap())
        };
        let message = "[container runtime is down, node is shutting down]";
        assert!(of("Ready", "False", message));
        assert!(!of("Ready", "True", message));
        assert!(!of("Ready", "False", "container runtime is down"));
        assert!(!of("DiskPressure", "False", message));
    }

    #[test]
    fn addresses_of_nodes_that_are_not_ready_excluded_or_deleted_are_not_for_clients() {
        let healthy = |node: Value| is_healthy(&serde_json::from_value(node).unwrap());
        let with = |kind: &str, status: &str| json!({"status": {"conditions": [{"type": kind, "status": status}]}});
        assert!(healthy(json!({"metadata": {"name": "a"}})));
        assert!(healthy(with("Ready", "True")));
        assert!(healthy(with("DiskPressure", "True")));
        assert!(healthy(json!({"spec": {"unschedulable": true}})), "clients know its address");
        assert!(!healthy(with("Ready", "False")));
        assert!(!healthy(with("Ready", "Unknown")));
        assert!(!healthy(with("NetworkUnavailable", "True")));
        assert!(!healthy(json!({"metadata": {"labels": {EXCLUDED: ""}}})));
        assert!(!healthy(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
        let taints = json!([{"key": TO_BE_DELETED, "effect": "NoSchedule"}]);
        assert!(!healthy(json!({"spec": {"taints": taints}})));
    }

    #[test]
    fn excluded_and_cordoned_nodes_are_not_preferred_for_announcements() {
        let preferred =
            |node: Value| is_preferred_for_load_balancers(&serde_json::from_value(node).unwrap());
        assert!(preferred(json!({"metadata": {"name": "a"}})));
        assert!(!preferred(json!({"metadata": {"labels": {EXCLUDED: ""}}})));
        assert!(!preferred(json!({"spec": {"unschedulable": true}})));
        let ready = json!({"type": "Ready", "status": "False", "message": SHUTDOWN});
        assert!(!preferred(json!({"status": {"conditions": [ready]}})));
        for (status, expected) in [("True", false), ("False", true), ("Unknown", true)] {
            let network = json!({"type": "NetworkUnavailable", "status": status});
            assert_eq!(preferred(json!({"status": {"conditions": [network]}})), expected);
        }
        assert!(!preferred(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    }
}
