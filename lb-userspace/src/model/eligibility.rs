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

/// False for a node that is excluded, cordoned for a drain, or being deleted: its addresses move to
/// another node beforehand.
pub fn is_preferred_for_load_balancers(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let is_excluded = labels.is_some_and(|labels| labels.contains_key(EXCLUDED));
    let spec = node.spec.as_ref();
    let is_cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
    is_eligible(node) && !is_excluded && !is_cordoned
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
    fn excluded_and_cordoned_nodes_are_not_preferred_for_announcements() {
        let preferred =
            |node: Value| is_preferred_for_load_balancers(&serde_json::from_value(node).unwrap());
        assert!(preferred(json!({"metadata": {"name": "a"}})));
        assert!(!preferred(json!({"metadata": {"labels": {EXCLUDED: ""}}})));
        assert!(!preferred(json!({"spec": {"unschedulable": true}})));
        assert!(!preferred(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    }
}
