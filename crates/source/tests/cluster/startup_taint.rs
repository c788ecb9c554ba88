//! The agent removes the startup taint of its Node, and no more than
//! `deploy/kustomize/components/startup-taint/role.yaml` grants.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lb_process::notices::{Notice, Notices};
use lb_rules::model::{Node, Object};
use lb_source::cluster::{NodeTaints, StartupTaint};
use lb_source::{Cluster, Event, Source};
use lb_waits::{LONG_WAIT, Resource, Waits};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::permissions::{granted, needed};
use super::server::{NODES, Server};
use super::{client, node};

const ROLE: &str = include_str!("../../../../deploy/kustomize/components/startup-taint/role.yaml");
/// Not the default of the setting.
const KEY: &str = "example.org/load-balancer-missing";
const OTHER: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const PATH: &str = "/api/v1/nodes/node-a";

#[derive(Clone, Default)]
struct Posted(Arc<Mutex<Vec<Notice>>>);

impl Notices for Posted {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }
}

impl Posted {
    fn messages(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

fn tainted(keys: &[&str]) -> Value {
    let taints: Vec<Value> =
        keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    let mut node = node("node-a");
    node["spec"] = json!({"taints": taints});
    node
}

fn has_taints(node: &Value, keys: &[&str]) -> bool {
    node["spec"] == tainted(keys)["spec"]
}

/// An agent that has programmed everything, as far as its Node is concerned.
struct Remover {
    posted: Posted,
    waits: Waits,
    /// Sends what the agent knows of its Node.
    taints: watch::Sender<NodeTaints>,
}

impl Remover {
    fn start(server: &Server) -> Self {
        Self::start_with(server, |remover| remover)
    }

    /// The watch of this one is late by no more than the time.
    fn start_with_lag(server: &Server, lag: Duration) -> Self {
        Self::start_with(server, |remover| remover.with_watch_lag(lag))
    }

    fn start_with(server: &Server, adapt: impl FnOnce(StartupTaint) -> StartupTaint) -> Self {
        let (posted, waits) = (Posted::default(), Waits::default());
        let (taints, known) = watch::channel(NodeTaints::default());
        let remover = StartupTaint::new(client(server), "node-a", KEY, Arc::new(posted.clone()));
        let remover = adapt(remover.with_waits(waits.clone()));
        tokio::spawn(remover.remove_whenever_there(known));
        Self { posted, waits, taints }
    }

    fn knows(&self, keys: &[&str]) {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        self.taints.send_replace(NodeTaints { uid: "node-a".to_owned(), keys });
    }

    fn waits_for(&self) -> Vec<Resource> {
        let waits = self.waits.long(Instant::now() + LONG_WAIT).into_iter();
        waits.map(|wait| wait.resource).collect()
    }
}

#[tokio::test]
async fn the_taint_is_removed_whenever_the_node_has_it_and_no_other() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[OTHER, KEY]));
    let remover = Remover::start(&server);
    remover.knows(&[OTHER, KEY]);
    server.object(NODES, "node-a", |node| has_taints(node, &[OTHER])).await;
    // A restarted agent, and an autoscaler that adds the taint again.
    let restarted = Remover::start(&server);
    restarted.knows(&[OTHER]);
    server.put(NODES, tainted(&[KEY, OTHER, KEY]));
    restarted.knows(&[KEY, OTHER, KEY]);
    server.object(NODES, "node-a", |node| has_taints(node, &[OTHER])).await;
    assert_eq!(server.requests().len(), 2, "one request for each removal");
    let needed: BTreeSet<_> = server.requests().iter().map(needed).collect();
    assert_eq!(needed, granted(ROLE));
    assert!(restarted.posted.messages().is_empty() && restarted.waits_for().is_empty());
}

#[tokio::test]
async fn a_missing_permission_is_reported_once_and_waited_for() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[KEY]));
    server.refuse(PATH, 403);
    let remover = Remover::start(&server);
    remover.knows(&[KEY]);
    server.asked(|requests| requests.len() >= 3).await;
    let [message] = &remover.posted.messages()[..] else { panic!() };
    assert!(message.contains("startupTaint.enabled of the chart"), "{message}");
    assert_eq!(remover.waits_for(), [Resource::Permission]);
    server.refuse(PATH, 200);
    server.object(NODES, "node-a", |node| has_taints(node, &[])).await;
}

/// The watch is behind: the API server must not remove another taint.
#[tokio::test]
async fn taints_that_another_client_has_changed_are_read_again() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[OTHER, KEY]));
    let remover = Remover::start(&server);
    remover.knows(&[KEY]);
    server.asked(|requests| requests.iter().any(|request| request.status == 422)).await;
    remover.knows(&[OTHER, KEY]);
    server.object(NODES, "node-a", |node| has_taints(node, &[OTHER])).await;
    assert!(remover.posted.messages().is_empty());
}

/// The watch may report a removal and the next addition together, which is no change.
#[tokio::test]
async fn a_taint_that_is_added_again_at_once_is_removed() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[KEY]));
    let remover = Remover::start_with_lag(&server, Duration::from_secs(1));
    remover.knows(&[KEY]);
    server.object(NODES, "node-a", |node| has_taints(node, &[])).await;
    server.put(NODES, tainted(&[KEY]));
    server.object(NODES, "node-a", |node| has_taints(node, &[])).await;
    assert!(remover.posted.messages().is_empty());
}

/// Admission policies refuse with the same status.
#[tokio::test]
async fn a_refusal_that_outlasts_the_lag_of_the_watch_is_reported() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[KEY]));
    server.refuse(PATH, 422);
    let remover = Remover::start_with_lag(&server, Duration::from_millis(250));
    remover.knows(&[KEY]);
    server.asked(|requests| !requests.is_empty()).await;
    assert!(remover.posted.messages().is_empty());
    server.asked(|requests| requests.len() >= 4).await;
    assert_eq!(remover.posted.messages().len(), 1);
    assert_eq!(remover.waits_for(), [Resource::ApiServer]);
}

#[tokio::test]
async fn the_source_reports_the_taints_of_a_node() {
    let server = Server::start().await;
    server.put(NODES, tainted(&[OTHER, KEY]));
    let (sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(Cluster::new(client(&server), "node-a").run(sender));
    let find = |event: Event| match event {
        Event::Applied(Object::Node(node)) => Some(node),
        Event::Together(events) => events.into_iter().find_map(|event| match event {
            Event::Applied(Object::Node(node)) => Some(node),
            _ => None,
        }),
        _ => None,
    };
    let reported: Box<Node> = loop {
        if let Some(node) = find(events.recv().await.unwrap()) {
            break node;
        }
    };
    assert_eq!(reported.taints, [OTHER, KEY]);
}
