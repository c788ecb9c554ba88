//! What the controller of addresses requests: no more than `deploy/kustomize/controller/role.yaml` grants.

use std::collections::BTreeSet;
use std::fs;

use lb_userspace::kinds::METALLB_NAMESPACE;
use lb_userspace::serve::Requests;
use lb_userspace::source::ControllerCluster;
use lb_userspace::source::cluster::Access;
use serde_json::json;

use super::permissions::{Permission, granted, needed};
use super::pools::{POOLS, pool};
use super::server::{Dialect, Server};
use super::{Reported, service};

const ROLE: &str = include_str!("../../../deploy/kustomize/controller/role.yaml");

async fn source(server: &Server) -> Reported {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    fs::write(&path, super::access::kubeconfig(server, json!({})).to_string()).unwrap();
    let access = Access { kubeconfig: Some(path), ..Access::default() };
    let connection = access.open(&Requests::default()).await.unwrap();
    Reported::of(ControllerCluster::of(connection, METALLB_NAMESPACE))
}

#[tokio::test]
async fn the_deployed_role_is_what_the_controller_needs() {
    let mut needed_by_any: BTreeSet<Permission> = BTreeSet::new();
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = Server::start().await;
        server.speak(dialect);
        server.put(super::SERVICES, service("a"));
        server.put(POOLS, pool("a"));
        let mut reported = source(&server).await;
        reported.until(|reported| reported.synced == 1).await;
        assert!(reported.is_there("AddressPool a") && reported.is_there("Service default/a"));
        server.asked(|all| all.iter().filter(|request| request.watch).count() >= 5).await;
        needed_by_any.extend(server.requests().iter().map(needed));
    }
    // What it writes; Events as the agent does.
    for (group, resource, verb) in [
        ("", "services/status", "patch"),
        ("millrace.io", "addresspools/status", "patch"),
        ("", "events", "create"),
        ("", "events", "patch"),
    ] {
        needed_by_any.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
    }
    assert_eq!(granted(ROLE), needed_by_any);
}
