//! What the Ingress proxy watches: no more than it needs, and no more than `deploy/kustomize/ingress/role.yaml` grants.

use std::collections::BTreeSet;
use std::fs;

use lb_process::ClientRequests;
use lb_rules::model::{Kind, ObjectRef};
use lb_source::IngressCluster;
use lb_source::cluster::Access;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::permissions::{Permission, granted, needed};
use super::server::{Dialect, Server};
use super::{Reported, node};

const ROLE: &str = include_str!("../../../../deploy/kustomize/ingress/role.yaml");
const SECRETS: &str = "/api/v1/secrets";
const OF_SHOP: &str = "/api/v1/namespaces/shop/secrets";

/// The source, and where the Secrets are named that it watches one by one.
async fn source(
    server: &Server,
    namespace: Option<&str>,
) -> (Reported, watch::Sender<BTreeSet<ObjectRef>>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    fs::write(&path, super::access::kubeconfig(server, json!({})).to_string()).unwrap();
    let access = Access { kubeconfig: Some(path), ..Access::default() };
    let connection = access.open(&ClientRequests::default()).await.unwrap();
    let (secrets, wanted) = watch::channel(BTreeSet::new());
    let source = IngressCluster::of(connection, Some("node-a".to_owned()), wanted)
        .in_namespace(namespace.map(str::to_owned));
    (Reported::of(source), secrets)
}

fn secret(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "shop", "uid": name});
    json!({"metadata": metadata, "type": "Opaque", "data": {"auth": "YQ=="}})
}

#[tokio::test]
async fn the_deployed_role_is_what_the_ingress_proxy_needs() {
    let mut needed_by_any: BTreeSet<Permission> = BTreeSet::new();
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = Server::start().await;
        server.speak(dialect);
        server.put(super::NODES, node("node-a"));
        let (mut reported, _secrets) = source(&server, None).await;
        reported.until(|reported| reported.synced == 1).await;
        server.asked(|all| all.iter().filter(|request| request.watch).count() >= 6).await;
        reported.until(|reported| reported.is_there("Node node-a")).await;
        for request in server.requests().iter().filter(|request| request.path == SECRETS) {
            assert_eq!(request.query["fieldSelector"], "type=kubernetes.io/tls");
        }
        needed_by_any.extend(server.requests().iter().map(needed));
    }
    // What it writes: the status of Ingresses, and Events as the agent does.
    for (group, resource, verb) in [
        ("networking.k8s.io", "ingresses/status", "patch"),
        ("", "events", "create"),
        ("", "events", "patch"),
    ] {
        needed_by_any.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
    }
    assert_eq!(granted(ROLE), needed_by_any);
}

#[tokio::test]
async fn other_secrets_are_watched_by_name_while_they_are_wanted() {
    let server = Server::start().await;
    server.put(OF_SHOP, secret("users"));
    server.put(OF_SHOP, secret("unrelated"));
    let (mut reported, secrets) = source(&server, None).await;
    reported.until(|reported| reported.synced == 1).await;
    let users = ObjectRef::new(Kind::Secret, Some("shop"), Some("users"));
    let absent = ObjectRef::new(Kind::Secret, Some("shop"), Some("absent"));
    secrets.send_replace(BTreeSet::from([users, absent.clone()]));
    reported.until(|reported| reported.synced == 2).await;
    assert!(reported.is_there("Secret shop/users"));
    assert!(!reported.is_there("Secret shop/unrelated"));

    secrets.send_replace(BTreeSet::from([absent]));
    reported.until(|reported| reported.deleted == ["Secret shop/users"]).await;
}

/// As when a certificate arrives for an Ingress that has been waiting for it.
#[tokio::test]
async fn the_end_of_a_watch_by_name_does_not_delete_what_another_watch_knows() {
    let server = Server::start().await;
    server.put(OF_SHOP, secret("unrelated"));
    let (mut reported, secrets) = source(&server, None).await;
    reported.until(|reported| reported.synced == 1).await;
    let late = ObjectRef::new(Kind::Secret, Some("shop"), Some("late"));
    let users = ObjectRef::new(Kind::Secret, Some("shop"), Some("users"));
    secrets.send_replace(BTreeSet::from([late, users.clone()]));
    reported.until(|reported| reported.synced == 2).await;
    server.put(OF_SHOP, secret("users"));
    reported.until(|reported| reported.is_there("Secret shop/users")).await;
    let mut certificate = secret("late");
    certificate["type"] = "kubernetes.io/tls".into();
    server.put(SECRETS, certificate);
    reported.until(|reported| reported.is_there("Secret shop/late")).await;
    secrets.send_replace(BTreeSet::from([users]));
    secrets.send_replace(BTreeSet::new());
    reported.until(|reported| !reported.is_there("Secret shop/users")).await;
    assert_eq!(reported.deleted, ["Secret shop/users"]);
    assert!(reported.is_there("Secret shop/late"));
}

#[tokio::test]
async fn one_namespace_is_watched_without_looking_at_others() {
    let server = Server::start().await;
    server.put(super::NODES, node("node-a"));
    let (mut reported, _secrets) = source(&server, Some("shop")).await;
    reported.until(|reported| reported.synced == 1).await;
    let paths: BTreeSet<String> =
        server.requests().into_iter().map(|request| request.path).collect();
    let unbound = ["/api/v1/nodes", "/apis/networking.k8s.io/v1/ingressclasses"];
    let others: Vec<&String> =
        paths.iter().filter(|path| !path.contains("/namespaces/shop/")).collect();
    assert!(others.iter().all(|path| unbound.contains(&path.as_str())), "{others:?}");
    assert!(paths.contains("/apis/networking.k8s.io/v1/namespaces/shop/ingresses"), "{paths:?}");
}
