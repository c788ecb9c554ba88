//! Kills the server repeatedly during writes: no acknowledged write is lost, none is applied in
//! part, and the server starts again each time.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod api_server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use api_server::{client, start};

const WRITERS: usize = 8;
/// Highest number of acknowledged writes before a kill; each round has another number.
const BEFORE_KILL: usize = 311;

/// By name: the last acknowledged number, and the last one sent.
type Numbers = Arc<Mutex<BTreeMap<String, (u64, u64)>>>;

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_writes_loses_nothing_that_was_acknowledged() {
    kill(6).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_hundred_kills_lose_nothing_that_was_acknowledged() {
    kill(100).await;
}

async fn kill(rounds: usize) {
    let directory = tempfile::tempdir().unwrap();
    let numbers = Numbers::default();
    let mut revision = 0;
    for round in 0..rounds {
        let mut process = start(directory.path()).await;
        let client = client(&directory.path().join("kubeconfig")).await;
        if round == 0 {
            create_services(&client, &numbers).await;
        }
        revision = check(&client, &numbers, revision).await;

        let acknowledged = Arc::new(tokio::sync::Semaphore::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, numbers) = (client.clone(), Arc::clone(&numbers));
                let acknowledged = Arc::clone(&acknowledged);
                tokio::spawn(write(client, format!("s{writer}"), numbers, acknowledged))
            })
            .collect();
        let enough = u32::try_from(1 + (150 + round * 37) % BEFORE_KILL).unwrap();
        drop(acknowledged.acquire_many(enough).await.unwrap());
        process.start_kill().unwrap();
        process.wait().await.unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
    }
    let _process = start(directory.path()).await;
    check(&client(&directory.path().join("kubeconfig")).await, &numbers, revision).await;
}

/// Creates a Service for each writer: all exist before the server is killed for the first time.
async fn create_services(client: &Client, numbers: &Numbers) {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    for writer in 0..WRITERS {
        let name = format!("s{writer}");
        let service = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {"number": "0"}},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]},
        }))
        .unwrap();
        services.create(&PostParams::default(), &service).await.unwrap();
        numbers.lock().unwrap().insert(name, (0, 0));
    }
}

/// Writes increasing numbers to a Service until the server is killed.
async fn write(
    client: Client,
    name: String,
    numbers: Numbers,
    acknowledged: Arc<tokio::sync::Semaphore>,
) {
    let services: Api<Service> = Api::default_namespaced(client);
    loop {
        let number = {
            let mut numbers = numbers.lock().unwrap();
            let entry = numbers.get_mut(&name).unwrap();
            entry.1 += 1;
            entry.1
        };
        let patch = Patch::Merge(json!({"metadata": {"annotations": {
            "number": number.to_string(),
        }}}));
        if services.patch(&name, &PatchParams::default(), &patch).await.is_err() {
            return;
        }
        numbers.lock().unwrap().get_mut(&name).unwrap().0 = number;
        acknowledged.add_permits(1);
    }
}

/// Checks that all acknowledged writes exist, and none that was not sent. Returns the revision,
/// which must not decrease.
async fn check(client: &Client, numbers: &Numbers, before: u64) -> u64 {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let list = services.list(&ListParams::default()).await.unwrap();
    let numbers = numbers.lock().unwrap();
    assert_eq!(list.items.len(), numbers.len());
    let mut ports = std::collections::BTreeSet::new();
    for service in list.items {
        let name = service.metadata.name.unwrap();
        let number: u64 = service.metadata.annotations.unwrap()["number"].parse().unwrap();
        let (acknowledged, sent) = numbers[&name];
        assert!((acknowledged..=sent).contains(&number), "{name}: {number} {acknowledged} {sent}");
        let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
        assert!(ports.insert(port), "node port {port} is held twice");
    }
    let revision = list.metadata.resource_version.unwrap().parse().unwrap();
    assert!(revision >= before, "{revision} after {before}");
    revision
}
