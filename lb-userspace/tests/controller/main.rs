//! Real processes and the embedded API: `millrace controller` and `millrace standalone` assign addresses; settings of
//! these and of `millrace ingress`.

// All of this is tests.
#![allow(clippy::unwrap_used)]

#[path = "../api_server/mod.rs"]
mod api_server;
mod ingress;
mod kubectl;
// Shared with the tests of the API.
#[path = "../../../crates/api/tests/api/kubectls.rs"]
mod kubectls;
mod manifests;
// Shared with the tests of other crates.
#[path = "../../../crates/status/tests/ports/mod.rs"]
mod ports;
mod replicas;
mod standalone;
mod world;

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;

use world::{SOON, addresses, create, patch, pool, service, until};

/// The time from the request that creates a Service until a watch shows its address.
async fn latencies(client: &Client, count: usize) -> Vec<Duration> {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let list = services.list(&Default::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    let stream = services.watch(&WatchParams::default(), &version).await.unwrap();
    let mut stream = stream.boxed();
    let mut times = Vec::new();
    for number in 0..count {
        let name = format!("web-{number}");
        let began = Instant::now();
        create(&services, service(&name, json!({}))).await;
        loop {
            let event = tokio::time::timeout(SOON, stream.try_next()).await.expect("an address");
            if let Some(WatchEvent::Modified(service)) = event.unwrap()
                && service.metadata.name.as_deref() == Some(&name)
                && !addresses(&service).is_empty()
            {
                times.push(began.elapsed());
                break;
            }
        }
    }
    times.sort();
    times
}

#[tokio::test]
async fn standalone_assigns_an_address_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let _server = api_server::start(directory.path()).await;
    let client = api_server::client(&directory.path().join("kubeconfig")).await;
    create(&Api::all(client.clone()), pool("a", &["192.0.2.0/24"])).await;
    let times = latencies(&client, 100).await;
    println!(
        "from the request that creates a Service until a watch has its address: median {:?}, 99th of 100 {:?}",
        times[times.len() / 2],
        times[98]
    );
}

/// Nothing but the statuses is handed over to the next process.
#[tokio::test]
async fn a_restart_of_standalone_changes_no_object() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let mut server = api_server::start(directory.path()).await;
    let client = api_server::client(&kubeconfig).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&Api::all(client), pool("a", &["192.0.2.1-192.0.2.2"])).await;
    for name in ["a", "b", "c"] {
        create(&services, service(name, json!({}))).await;
        until(&services, name, |service| world::condition(service).is_some()).await;
    }
    let versions = |list: Vec<Service>| -> Vec<_> {
        list.into_iter()
            .map(|service| (service.metadata.name, service.metadata.resource_version))
            .collect()
    };
    let before = versions(services.list(&Default::default()).await.unwrap().items);
    // Its end is waited for: the next one needs its files.
    server.kill().await.unwrap();

    let _server = api_server::start(directory.path()).await;
    let client = api_server::client(&kubeconfig).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    // A Service that is created now has its address after all others have been looked at.
    create(&Api::all(client), pool("b", &["192.0.2.9"])).await;
    until(&services, "c", |service| addresses(service) == ["192.0.2.9"]).await;
    let after = versions(services.list(&Default::default()).await.unwrap().items);
    assert_eq!(before[..2], after[..2]);
}

#[tokio::test]
async fn an_address_is_free_again_when_the_type_changes_or_the_service_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let _server = api_server::start(directory.path()).await;
    let client = api_server::client(&directory.path().join("kubeconfig")).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&Api::all(client), pool("a", &["192.0.2.1"])).await;
    create(&services, service("a", json!({}))).await;
    until(&services, "a", |service| addresses(service) == ["192.0.2.1"]).await;
    create(&services, service("b", json!({}))).await;
    until(&services, "b", |service| world::reason(service) == "PoolExhausted").await;

    patch(&services, "a", json!({"spec": {"type": "ClusterIP"}})).await;
    until(&services, "b", |service| addresses(service) == ["192.0.2.1"]).await;
    until(&services, "a", |service| {
        addresses(service).is_empty() && world::condition(service).is_none()
    })
    .await;

    patch(&services, "a", json!({"spec": {"type": "LoadBalancer"}})).await;
    until(&services, "a", |service| world::reason(service) == "PoolExhausted").await;
    services.delete("b", &DeleteParams::default()).await.unwrap();
    until(&services, "a", |service| addresses(service) == ["192.0.2.1"]).await;
}

#[tokio::test]
async fn conditions_of_other_controllers_stay() {
    let directory = tempfile::tempdir().unwrap();
    let _server = api_server::start(directory.path()).await;
    let client = api_server::client(&directory.path().join("kubeconfig")).await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    create(&services, service("a", json!({}))).await;
    until(&services, "a", |service| world::reason(service) == "NoPool").await;
    let other = json!({
        "type": "example.org/Checked", "status": "True", "reason": "Good", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"
    });
    let status = json!({"status": {"conditions": [other]}});
    let parameters = kube::api::PatchParams::default();
    services.patch_status("a", &parameters, &kube::api::Patch::Strategic(status)).await.unwrap();
    create(&Api::all(client), pool("a", &["192.0.2.1"])).await;
    until(&services, "a", |service| addresses(service) == ["192.0.2.1"]).await;
    let conditions = services.get("a").await.unwrap().status.unwrap().conditions.unwrap();
    let types: Vec<&str> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert!(types.contains(&"example.org/Checked") && types.len() == 2, "{types:?}");

    patch(&services, "a", json!({"spec": {"type": "ClusterIP"}})).await;
    until(&services, "a", |service| world::condition(service).is_none()).await;
    let conditions = services.get("a").await.unwrap().status.unwrap().conditions.unwrap();
    assert_eq!(conditions.len(), 1);
}
