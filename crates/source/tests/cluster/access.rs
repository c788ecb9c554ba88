//! Several API servers, and credentials that are replaced while the source runs.

use std::fs;
use std::path::Path;

use lb_process::ClientRequests;
use lb_source::Cluster;
use lb_source::cluster::Access;
use serde_json::{Value, json};

use super::server::{NODES, SERVICES, SLICES, Server};
use super::{Reported, service, watches, with_services};

/// A source that reads a kubeconfig with the first of these servers, and has the others as options.
async fn cluster(directory: &Path, servers: &[&Server], token: Option<&Path>) -> Cluster {
    let kubeconfig = kubeconfig(servers[0], json!({"tokenFile": token}));
    let path = directory.join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let access = Access {
        kubeconfig: Some(path),
        api_servers: servers[1..].iter().map(|server| url(server)).collect(),
        ..Access::default()
    };
    Cluster::of(access.open(&ClientRequests::default()).await.unwrap(), "node-a")
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

pub fn kubeconfig(server: &Server, user: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url(server)}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}]
    })
}

#[tokio::test]
async fn the_source_moves_to_another_server_when_its_own_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let second = with_services(&["web", "second"]).await;
    let mut first = with_services(&["web"]).await;
    // Options come before the kubeconfig.
    let mut reported = Reported::of(cluster(directory.path(), &[&second, &first], None).await);
    reported.until(|reported| reported.synced == 1).await;
    assert!(!reported.is_there("Service default/second"));
    first.asked(|requests| watches(requests, SERVICES) == 1).await;
    assert!(second.requests().is_empty());

    first.go_away().await;
    reported.until(|reported| reported.is_there("Service default/second")).await;
    assert!(reported.is_there("Service default/web"));
    // It stays there.
    first.come_back().await;
    second.hang_up();
    second.put(SERVICES, service("later"));
    reported.until(|reported| reported.is_there("Service default/later")).await;
}

#[tokio::test]
async fn a_node_starts_while_one_of_its_servers_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let second = with_services(&["web"]).await;
    let mut first = Server::start().await;
    first.go_away().await;
    let mut reported = Reported::of(cluster(directory.path(), &[&second, &first], None).await);
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there("Service default/web"));
}

#[tokio::test]
async fn a_server_that_accepts_connections_and_only_fails_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let second = with_services(&["web"]).await;
    let first = Server::start().await;
    for path in [SERVICES, SLICES, NODES] {
        first.refuse(path, 500);
    }
    let mut reported = Reported::of(cluster(directory.path(), &[&second, &first], None).await);
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there("Service default/web"));
    assert!(!first.requests().is_empty());
}

/// As the tools of clusters do when they renew a node's kubeconfig.
#[tokio::test]
async fn a_kubeconfig_that_is_replaced_is_used_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (with_services(&["web"]).await, with_services(&["web", "second"]).await);
    second.require("two");
    let mut reported = Reported::of(cluster(directory.path(), &[&first], None).await);
    reported.until(|reported| reported.synced == 1).await;
    assert!(!reported.is_there("Service default/second"));

    first.require("none");
    first.hang_up();
    first.asked(|requests| requests.iter().any(|request| request.status == 401)).await;
    let path = directory.path().join("kubeconfig");
    // A file that can't be used changes nothing.
    fs::write(&path, "clusters: [").unwrap();
    let config = kubeconfig(&second, json!({"token": "two"}));
    let new = directory.path().join("new");
    fs::write(&new, config.to_string()).unwrap();
    fs::rename(&new, &path).unwrap();
    reported.until(|reported| reported.is_there("Service default/second")).await;
    assert!(reported.is_there("Service default/web"));
}

/// kube-rs reads a token once a minute, which is longer than this test waits.
#[tokio::test]
async fn a_token_that_is_replaced_after_a_refusal_is_used_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "one").unwrap();
    let server = with_services(&["web"]).await;
    server.require("one");
    let mut reported = Reported::of(cluster(directory.path(), &[&server], Some(&token)).await);
    reported.until(|reported| reported.synced == 1).await;

    server.require("two");
    server.hang_up();
    server.asked(|requests| requests.iter().any(|request| request.status == 401)).await;
    server.put(SERVICES, service("later"));
    fs::write(&token, "two").unwrap();
    reported.until(|reported| reported.is_there("Service default/later")).await;
}
