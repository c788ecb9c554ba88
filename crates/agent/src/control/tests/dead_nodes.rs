//! Endpoints of dead nodes.

use super::*;

fn address_of(node: &str) -> &'static str {
    if node == "node-b" { "10.244.0.2" } else { "10.244.0.3" }
}

#[test]
fn endpoints_of_a_dead_node_are_set_aside_and_given_back_and_both_are_posted_once() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    case.service("db", "10.96.0.2");
    for node in ["node-b", "node-c"] {
        case.handle(applied(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}),
        ));
    }
    for (service, nodes) in [("web", &["node-b", "node-c"][..]), ("db", &["node-b"])] {
        let endpoints: Vec<Value> = nodes
            .iter()
            .map(|node| json!({"addresses": [address_of(node)], "nodeName": node}))
            .collect();
        case.handle(applied(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "ports": [{"port": 8080}], "endpoints": endpoints
        })));
    }
    let backends = |case: &Case, frontend: &str| case.memory.led_to()[frontend].len();
    assert_eq!((backends(&case, "10.96.0.1"), backends(&case, "10.96.0.2")), (2, 1));
    let dead = BTreeSet::from(["node-b".to_owned()]);
    case.agent.set_dead_nodes(dead.clone());
    // The only endpoint stays.
    assert_eq!((backends(&case, "10.96.0.1"), backends(&case, "10.96.0.2")), (1, 1));
    // Also when nodes and endpoints change meanwhile.
    case.node(json!({"unschedulable": true}));
    let written = case.memory.writes();
    case.agent.set_dead_nodes(dead);
    case.agent.program_changes(Affected::All);
    assert_eq!((backends(&case, "10.96.0.1"), case.memory.writes()), (1, written));
    case.agent.set_dead_nodes(BTreeSet::new());
    assert_eq!(backends(&case, "10.96.0.1"), 2);
    let posted = case.posted.all();
    let expected = ["no node hears its heartbeats", "it lives"];
    assert_eq!(posted.len(), 2, "{posted:?}");
    for (notice, expected) in posted.iter().zip(expected) {
        assert!(notice.starts_with("Node node-b: ") && notice.contains(expected), "{notice}");
    }
    // One that the cluster no longer has is no longer dead, but does not live either.
    case.agent.set_dead_nodes(BTreeSet::from(["node-x".to_owned()]));
    case.agent.set_dead_nodes(BTreeSet::new());
    assert_eq!(case.posted.all().len(), 2);
}
