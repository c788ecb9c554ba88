//! Which Nodes are watched: its own, or with tunnels all of them.

use std::collections::BTreeSet;

use lb_common::layout::Forwarding;
use lb_source::Cluster;
use serde_json::{Value, json};

use super::server::{Dialect, NODES, SERVICES, Server};
use super::{Reported, client, lists, node, service, watches, with_services};

const NODE_A: &str = "Node node-a";
const NODE_B: &str = "Node node-b";

#[tokio::test]
async fn only_the_own_node_is_watched() {
    let server = with_services(&["web"]).await;
    server.put(NODES, node("node-b"));
    let mut reported = Reported::synced(&server).await;
    assert!(reported.is_there(NODE_A) && !reported.is_there(NODE_B));
    assert!(reported.problems.is_empty());
    server.put(NODES, node("node-b"));
    server.remove(NODES, "node-a");
    reported.until(|reported| !reported.is_there(NODE_A)).await;
    assert_eq!(reported.deleted, [NODE_A]);
    assert!(!reported.applied.iter().any(|name| name == NODE_B));
    let nodes = server.requests().into_iter().filter(|request| request.path == NODES);
    let selectors: BTreeSet<String> = nodes.map(|r| r.query["fieldSelector"].clone()).collect();
    assert_eq!(selectors, BTreeSet::from(["metadata.name=node-a".to_owned()]));
}

fn tunnelled(name: &str) -> Value {
    let mut service = service(name);
    service["metadata"]["annotations"] = json!({"millrace.io/forwarding": "gue"});
    service
}

#[tokio::test]
async fn all_nodes_are_there_before_synced_if_a_service_has_tunnels() {
    let server = with_services(&[]).await;
    server.put(NODES, node("node-b"));
    server.put(SERVICES, tunnelled("web"));
    let reported = Reported::synced(&server).await;
    assert!(reported.is_there(NODE_A) && reported.is_there(NODE_B));
    assert_eq!(lists(&server.requests(), NODES), 1, "not first the own one, and then all");
}

#[tokio::test]
async fn all_nodes_are_watched_if_tunnels_are_the_default() {
    let server = with_services(&[]).await;
    server.put(NODES, node("node-b"));
    let cluster = Cluster::new(client(&server), "node-a").with_forwarding(Forwarding::Ipip);
    let mut reported = Reported::of(cluster);
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there(NODE_A) && reported.is_there(NODE_B));
}

#[tokio::test]
async fn the_watch_widens_when_a_service_gets_a_tunnel() {
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = with_services(&["web"]).await;
        server.speak(dialect);
        server.put(NODES, node("node-b"));
        let mut reported = Reported::synced(&server).await;
        server.asked(|r| watches(r, NODES) == 1).await;
        server.put(SERVICES, tunnelled("web"));
        reported.until(|reported| reported.is_there(NODE_B)).await;
        assert!(reported.is_there(NODE_A) && reported.deleted.is_empty());
        assert_eq!(reported.applied.iter().filter(|name| *name == NODE_A).count(), 1);
        // The scope stays wide.
        server.put(SERVICES, service("web"));
        server.put(NODES, node("node-c"));
        reported.until(|reported| reported.is_there("Node node-c")).await;
    }
}

#[tokio::test]
async fn a_node_that_the_cluster_does_not_know_is_named() {
    let server = Server::start().await;
    server.put(NODES, node("node-b"));
    let reported = Reported::synced(&server).await;
    let [problem] = &reported.problems[..] else { panic!("{:?}", reported.problems) };
    assert!(problem.starts_with("Node node-a: is not in the cluster"), "{problem}");
}
