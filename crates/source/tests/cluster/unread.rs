//! Kinds of MetalLB that Millrace does not read.

use lb_rules::kinds::METALLB_NAMESPACE;
use lb_source::cluster::{UnreadKind, list_unread_metallb_kinds};
use serde_json::{Value, json};

use super::client;
use super::pools::of_metallb;
use super::server::{Scripted, Server};

/// A cluster with these versions of MetalLB's group, each with its resources: name and kind.
pub fn with_kinds(server: &Server, versions: &[(&str, &[(&str, &str)])]) {
    let answer = |path: &str, body: Value| {
        let body = body.to_string();
        server.answer_next(path, Scripted { status: 200, retry_after: None, body });
    };
    let group = versions.iter().map(|(version, _)| json!({"version": version}));
    answer("/apis/metallb.io", json!({"versions": group.collect::<Vec<_>>()}));
    for (version, resources) in versions {
        let resources = resources.iter().map(|(name, kind)| {
            let verbs = if name.contains('/') { json!(["get"]) } else { json!(["get", "list"]) };
            json!({"name": name, "kind": kind, "namespaced": true, "verbs": verbs})
        });
        let resources: Vec<Value> = resources.collect();
        answer(&format!("/apis/metallb.io/{version}"), json!({"resources": resources}));
    }
}

async fn unread(server: &Server) -> Vec<String> {
    let kinds = list_unread_metallb_kinds(&client(server), METALLB_NAMESPACE).await.unwrap();
    kinds.iter().map(UnreadKind::to_string).collect()
}

#[tokio::test]
async fn objects_of_unread_kinds_of_metallb_are_found_one_of_each() {
    let server = Server::start().await;
    with_kinds(
        &server,
        &[
            ("v1beta2", &[("bgppeers", "BGPPeer")]),
            (
                "v1beta1",
                &[
                    ("addresspools", "AddressPool"),
                    ("ipaddresspools", "IPAddressPool"),
                    ("ipaddresspools/status", "IPAddressPool"),
                    ("bgppeers", "BGPPeer"),
                    // Written, not read.
                    ("servicel2statuses", "ServiceL2Status"),
                    ("configurationstates", "ConfigurationState"),
                    ("bgpsessionstates", "BGPSessionState"),
                    ("nodeselections", "NodeSelection"),
                ],
            ),
        ],
    );
    for resource in ["addresspools", "bgpsessionstates", "servicel2statuses", "ipaddresspools"] {
        let object = json!({"metadata": {"name": "a", "namespace": METALLB_NAMESPACE}});
        server.put(&of_metallb(resource), object);
    }
    server.refuse(&of_metallb("nodeselections"), 403);
    assert_eq!(
        unread(&server).await,
        [
            "objects of kind AddressPool of metallb.io are not read: what they configure has no effect",
            "objects of kind BGPSessionState of metallb.io are reports of MetalLB, which Millrace does not update",
            "objects of kind NodeSelection of metallb.io may exist; this account may not list them",
        ]
    );
    let lists = server.requests();
    let lists: Vec<_> =
        lists.iter().filter(|request| request.path.contains("namespaces")).collect();
    assert_eq!(lists.len(), 4);
    assert!(lists.iter().all(|list| list.query["limit"] == "1"), "{lists:?}");
}

#[tokio::test]
async fn a_cluster_without_metallb_has_no_unread_kinds() {
    let server = Server::start().await;
    server.refuse("/apis/metallb.io", 404);
    assert_eq!(unread(&server).await, [""; 0]);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn what_is_no_list_of_kinds_is_an_error() {
    for body in ["[]", "{\"versions\": [{}]}", "<html>"] {
        let server = Server::start().await;
        let body = body.to_owned();
        server.answer_next("/apis/metallb.io", Scripted { status: 200, retry_after: None, body });
        let error = list_unread_metallb_kinds(&client(&server), METALLB_NAMESPACE).await;
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("/apis/metallb.io can't be read: not the JSON"), "{error}");
    }
}
