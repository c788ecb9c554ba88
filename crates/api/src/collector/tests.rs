//! Garbage collection and the deletion of namespaces, while several clients create and delete at
//! random. At the end nothing is left that should be gone, and nothing is gone that should be left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::item::build_request;
use super::run_collector;
use crate::kinds::{self, AllocationRanges, ApiKind, KindRegistry, Subresource};
use crate::operations::{Api, RequestTarget};
use crate::storage::{ChangeWindow, Storage};

const ROUNDS: u64 = 6;
const CLIENTS: u64 = 6;
/// Of each client in a round.
const STEPS: usize = 40;
const NAMESPACES: usize = 3;

/// SplitMix64: a seed is a series of decisions. Their interleaving is up to the scheduler.
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, range: Range<usize>) -> usize {
        let length = u64::try_from(range.len()).unwrap();
        range.start + usize::try_from(self.number() % length).unwrap()
    }

    fn choose<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        (!all.is_empty()).then(|| &all[self.below(0..all.len())])
    }
}

/// An object that a client created.
struct Created {
    /// The uid of its namespace when it was created: a new namespace of the same name has another uid.
    namespace: String,
    owners: Vec<String>,
}

/// By uid.
#[derive(Default)]
struct History {
    created: BTreeMap<String, Created>,
    deleted: BTreeSet<String>,
}

fn kind(name: &str) -> &'static ApiKind {
    kinds::find_kind("v1", name).unwrap()
}

fn target(kind: &'static ApiKind, namespace: Option<&str>, name: Option<&str>) -> RequestTarget {
    let (namespace, name) = (namespace.map(str::to_owned), name.map(str::to_owned));
    RequestTarget { kind, namespace, name, subresource: Subresource::None, keeps_metadata: false }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// All namespaces and ConfigMaps.
fn objects(api: &Api) -> Vec<Value> {
    api.storage().all().objects.iter().map(|(_, stored)| stored.object()).collect()
}

async fn create(api: &Api, target: RequestTarget, object: &Value) -> Option<Value> {
    let request = build_request(target, "test", "application/json", object);
    api.create(request).await.ok().map(|outcome| outcome.value)
}

async fn delete(api: &Api, target: RequestTarget, policy: &str, uid: &str) -> bool {
    let options = json!({"propagationPolicy": policy, "preconditions": {"uid": uid}});
    api.delete(build_request(target, "test", "application/json", &options)).await.is_ok()
}

async fn step(api: &Api, random: &mut Random, name: String, history: &Mutex<History>) {
    let namespace = format!("n{}", random.below(0..NAMESPACES));
    let all = objects(api);
    let present =
        all.iter().find(|one| one["kind"] == "Namespace" && text(one, "name") == namespace);
    let maps: Vec<&Value> = all
        .iter()
        .filter(|one| one["kind"] == "ConfigMap" && text(one, "namespace") == namespace)
        .collect();
    match (random.below(0..40), present) {
        (_, None) => {
            let object = json!({"metadata": {"name": namespace}});
            create(api, target(kind("Namespace"), None, None), &object).await;
        }
        (0, Some(present)) => {
            let target = target(kind("Namespace"), None, Some(&namespace));
            delete(api, target, "Background", text(present, "uid")).await;
        }
        (1..=26, Some(present)) => {
            let count = random.below(0..3);
            let owners: Vec<&Value> =
                (0..count).filter_map(|_| random.choose(&maps).copied()).collect();
            let mut references: BTreeMap<&str, Value> = BTreeMap::new();
            for owner in &owners {
                let reference = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "name": text(owner, "name"),
                    "uid": text(owner, "uid"), "blockOwnerDeletion": random.below(0..2) == 0,
                });
                references.insert(text(owner, "uid"), reference);
            }
            let owners: Vec<String> = references.keys().map(|uid| (*uid).to_owned()).collect();
            let references: Vec<Value> = references.into_values().collect();
            let object = json!({"metadata": {"name": name, "ownerReferences": references}});
            let target = target(kind("ConfigMap"), Some(&namespace), None);
            if let Some(created) = create(api, target, &object).await {
                let record = Created { namespace: text(present, "uid").to_owned(), owners };
                let uid = text(&created, "uid").to_owned();
                history.lock().unwrap().created.insert(uid, record);
            }
        }
        _ => {
            let Some(chosen) = random.choose(&maps) else { return };
            let policies = ["Background", "Foreground", "Orphan"];
            let policy = random.choose(&policies).unwrap();
            let target = target(kind("ConfigMap"), Some(&namespace), Some(text(chosen, "name")));
            if delete(api, target, policy, text(chosen, "uid")).await {
                history.lock().unwrap().deleted.insert(text(chosen, "uid").to_owned());
            }
        }
    }
}

/// What is left that should be gone.
fn leftovers(api: &Api) -> Vec<String> {
    let all = objects(api);
    let uids: BTreeSet<&str> = all.iter().map(|one| text(one, "uid")).collect();
    let namespaces: BTreeSet<&str> =
        all.iter().filter(|one| one["kind"] == "Namespace").map(|one| text(one, "name")).collect();
    let mut wrong = Vec::new();
    for object in &all {
        let name =
            format!("{} {}/{}", object["kind"], text(object, "namespace"), text(object, "name"));
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let is_alive = |owner: &Value| owner["uid"].as_str().is_some_and(|uid| uids.contains(uid));
        if !text(object, "deletionTimestamp").is_empty() {
            wrong.push(format!("{name} is still being deleted"));
        } else if !owners.is_empty() && !owners.iter().any(is_alive) {
            wrong.push(format!("{name} has lost its owners"));
        } else if object["kind"] == "ConfigMap" && !namespaces.contains(text(object, "namespace")) {
            wrong.push(format!("{name} has lost its namespace"));
        }
    }
    wrong
}

/// What is gone although neither a client nor the loss of owners or namespace explains it.
fn losses(api: &Api, history: &History) -> Vec<String> {
    let all = objects(api);
    let uids: BTreeSet<&str> = all.iter().map(|one| text(one, "uid")).collect();
    let is_alive = |uid: &String| uids.contains(uid.as_str());
    let unexplained = history.created.iter().filter(|(uid, created)| {
        !is_alive(uid)
            && !history.deleted.contains(*uid)
            && is_alive(&created.namespace)
            && (created.owners.is_empty() || created.owners.iter().any(is_alive))
    });
    unexplained.map(|(uid, _)| format!("{uid} is lost")).collect()
}

fn open_api(directory: &Path) -> Api {
    let storage = Storage::open(directory, ChangeWindow::default()).unwrap();
    let cluster_ips = vec!["10.96.0.0/16".parse().unwrap()];
    Api::new(
        storage,
        KindRegistry::default(),
        AllocationRanges { cluster_ips, node_ports: 30000..=32767 },
    )
    .unwrap()
}

/// The collector does not run, so only requests change the finalizers.
#[tokio::test]
async fn a_later_delete_replaces_the_policy_of_an_earlier_one() {
    let directory = tempfile::tempdir().unwrap();
    let api = open_api(directory.path());
    let of = |name| target(kind("ConfigMap"), Some("default"), name);
    create(&api, target(kind("Namespace"), None, None), &json!({"metadata": {"name": "default"}}))
        .await;
    let finalizers = || {
        let all = objects(&api);
        let map = all.into_iter().find(|one| text(one, "name") == "owner");
        map.map(|map| map["metadata"]["finalizers"].clone())
    };
    let metadata = json!({"name": "owner", "finalizers": ["example.org/own"]});
    let created = create(&api, of(None), &json!({"metadata": metadata})).await.unwrap();
    let uid = text(&created, "uid");
    for (policy, expected) in [
        ("Foreground", json!(["example.org/own", "foregroundDeletion"])),
        ("Foreground", json!(["example.org/own", "foregroundDeletion"])),
        ("Orphan", json!(["example.org/own", "orphan"])),
        ("Foreground", json!(["example.org/own", "foregroundDeletion"])),
        ("Background", json!(["example.org/own"])),
        ("Orphan", json!(["example.org/own", "orphan"])),
    ] {
        assert!(delete(&api, of(Some("owner")), policy, uid).await);
        assert_eq!(finalizers(), Some(expected), "{policy}");
    }

    // Without a finalizer of its own, the object is gone as soon as nobody waits for dependents.
    let metadata = json!({"name": "free"});
    let created = create(&api, of(None), &json!({"metadata": metadata})).await.unwrap();
    let is_present = || objects(&api).iter().any(|one| text(one, "name") == "free");
    assert!(delete(&api, of(Some("free")), "Foreground", text(&created, "uid")).await);
    assert!(is_present());
    assert!(delete(&api, of(Some("free")), "Background", text(&created, "uid")).await);
    assert!(!is_present());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_interleavings_leave_no_garbage_and_lose_nothing() {
    let mut created = 0;
    for seed in 0..ROUNDS {
        let directory = tempfile::tempdir().unwrap();
        let api = open_api(directory.path());
        let collector = tokio::spawn(run_collector(api.clone()));
        let history = std::sync::Arc::new(Mutex::new(History::default()));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (api, history) = (api.clone(), std::sync::Arc::clone(&history));
                tokio::spawn(async move {
                    let mut random = Random(seed * CLIENTS + client);
                    for number in 0..STEPS {
                        let name = format!("c{client}-{number}");
                        step(&api, &mut random, name, &history).await;
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        let mut left = leftovers(&api);
        let began = std::time::Instant::now();
        while !left.is_empty() && began.elapsed() < Duration::from_secs(120) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            left = leftovers(&api);
        }
        assert!(left.is_empty(), "seed {seed}: {left:?}");
        let lost = losses(&api, &history.lock().unwrap());
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
        created += history.lock().unwrap().created.len();
        collector.abort();
    }
    assert!(created > 5 * STEPS, "only {created} objects were created");
}
