//! Several API servers, and credentials that are replaced while the source runs.

use std::fs;
use std::path::Path;

use lb_userspace::serve::Requests;
use lb_userspace::source::Cluster;
use lb_userspace::source::cluster::Access;
use serde_json::json;

use super::server::{SERVICES, Server};
use super::{Told, service, watches, with_services};

/// A source that reads a kubeconfig with the first of these servers, and has the others as options.
async fn cluster(directory: &Path, servers: &[&Server], token: Option<&Path>) -> Cluster {
    let url = |server: &Server| format!("http://{}", server.address());
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url(servers[0])}}],
        "users": [{"name": "me", "user": {"tokenFile": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}]
    });
    let path = directory.join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let access = Access {
        kubeconfig: Some(path),
        api_servers: servers[1..].iter().map(|server| url(server)).collect(),
        ..Access::default()
    };
    Cluster::of(access.open(&Requests::default()).await.unwrap(), "node-a")
}

#[tokio::test]
async fn the_source_moves_to_another_server_when_its_own_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let second = with_services(&["web", "second"]).await;
    let mut first = with_services(&["web"]).await;
    // Options come before the kubeconfig.
    let mut told = Told::of(cluster(directory.path(), &[&second, &first], None).await);
    told.until(|told| told.synced == 1).await;
    assert!(!told.is_there("Service default/second"));
    first.asked(|requests| watches(requests, SERVICES) == 1).await;
    assert!(second.requests().is_empty());

    first.go_away().await;
    told.until(|told| told.is_there("Service default/second")).await;
    assert!(told.is_there("Service default/web"));
    // It stays there.
    first.come_back().await;
    second.hang_up();
    second.put(SERVICES, service("later"));
    told.until(|told| told.is_there("Service default/later")).await;
}

#[tokio::test]
async fn a_node_starts_while_one_of_its_servers_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let second = with_services(&["web"]).await;
    let mut first = Server::start().await;
    first.go_away().await;
    let mut told = Told::of(cluster(directory.path(), &[&second, &first], None).await);
    told.until(|told| told.synced == 1).await;
    assert!(told.is_there("Service default/web"));
}

/// kube-rs reads a token once a minute, which is longer than this test waits.
#[tokio::test]
async fn a_token_that_is_replaced_after_a_refusal_is_used_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "one").unwrap();
    let server = with_services(&["web"]).await;
    server.require("one");
    let mut told = Told::of(cluster(directory.path(), &[&server], Some(&token)).await);
    told.until(|told| told.synced == 1).await;

    server.require("two");
    server.hang_up();
    server.asked(|requests| requests.iter().any(|request| request.status == 401)).await;
    server.put(SERVICES, service("later"));
    fs::write(&token, "two").unwrap();
    told.until(|told| told.is_there("Service default/later")).await;
}
