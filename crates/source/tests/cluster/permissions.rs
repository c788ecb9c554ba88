//! `deploy/kustomize/base/role.yaml` grants exactly the permissions that the agent uses.

use std::collections::BTreeSet;

use axum::http::Method;
use lb_process::notices::{NoticeReason, Notices};
use lb_rules::model::Kind;
use lb_source::cluster::Events;
use serde::Deserialize;
use serde_json::Value;

use super::announcement_statuses::write_all_statuses;
use super::events::notice;
use super::server::{Dialect, Request, SLICES, Server};
use super::{Reported, client, node, watches};

const MANIFEST: &str = include_str!("../../../../deploy/kustomize/base/role.yaml");

/// API group, resource, verb.
pub type Permission = (String, String, String);

/// What the ClusterRole grants.
pub fn granted(manifest: &str) -> BTreeSet<Permission> {
    let documents = serde_norway::Deserializer::from_str(manifest);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    let role = documents.into_iter().find(|document| document["kind"] == "ClusterRole").unwrap();
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let texts = rule[field].as_array().unwrap().iter();
        texts.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for verb in texts(rule, "verbs") {
                    granted.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    granted
}

pub fn needed(request: &Request) -> Permission {
    let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    let group = if parts[0] == "api" { "" } else { parts[1] };
    // Only patches name an object.
    let (resource, verb) = match (&request.method, &parts[..], request.watch) {
        (&Method::POST, [.., resource], _) => ((*resource).to_owned(), "create"),
        (&Method::PATCH, [.., resource, _, "status"], _) => (format!("{resource}/status"), "patch"),
        (&Method::PATCH, [.., resource, _], _) => ((*resource).to_owned(), "patch"),
        (&Method::DELETE, [.., resource], _) => ((*resource).to_owned(), "deletecollection"),
        (_, [.., resource], true) => ((*resource).to_owned(), "watch"),
        (_, [.., resource], false) => ((*resource).to_owned(), "list"),
        (_, [], _) => panic!("{} has no resource", request.path),
    };
    (group.to_owned(), resource, verb.to_owned())
}

#[tokio::test]
async fn the_deployed_role_is_what_the_agent_needs() {
    let mut needed_by_any = BTreeSet::new();
    // Servers that do not stream lists need another verb.
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = Server::start().await;
        server.speak(dialect);
        server.put(super::NODES, node("node-a"));
        let _reported = Reported::synced(&server).await;
        let events = Events::new(client(&server), "node-a");
        events.post(notice(Kind::Service, NoticeReason::NotServed));
        server.events(1, 0).await;
        events.post(notice(Kind::Service, NoticeReason::NotServed));
        server.asked(|all| all.iter().any(|request| request.method == Method::PATCH)).await;
        let of_metallb = super::pools::ALL_OF_METALLB.map(super::pools::of_metallb);
        let all = [
            super::SERVICES,
            SLICES,
            super::NODES,
            super::pools::POOLS,
            super::pools::PEERS,
            super::pools::PASSWORDS,
        ];
        let all = all.into_iter().chain(of_metallb.iter().map(String::as_str));
        server.asked(|requests| all.clone().all(|path| watches(requests, path) > 0)).await;
        needed_by_any.extend(server.requests().iter().map(needed));
    }
    needed_by_any.extend(write_all_statuses(&Server::start().await).await);
    // A Role grants access to one Secret.
    let of_secrets = BTreeSet::from(
        ["list", "watch"].map(|verb| (String::new(), "secrets".to_owned(), verb.to_owned())),
    );
    let by_cluster_role: BTreeSet<Permission> =
        needed_by_any.difference(&of_secrets).cloned().collect();
    assert_eq!(granted(MANIFEST), by_cluster_role);
    assert!(of_secrets.is_subset(&needed_by_any), "{needed_by_any:?}");
    assert!(MANIFEST.contains("resourceNames: [millrace-bgp]"));
}
