//! What a node announces, as objects of MetalLB's kinds on the embedded API.

// All of this is tests.
#![allow(clippy::unwrap_used)]

// Shared with the tests of the API, which use more of it.
#[allow(dead_code)]
#[path = "../../api/tests/api/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use lb_rules::kinds::METALLB_NAMESPACE;
use lb_rules::model::ServiceName;
use lb_source::cluster::{
    AnnouncedServices, NodeTaints, StatusIntervals, StatusKind, StatusWriter,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use server::TestServer;

/// A long limit: the machine may be busy.
const SOON: Duration = Duration::from_secs(120);

/// The definition of MetalLB's kind, as far as this API enforces it.
fn definition(kind: StatusKind) -> CustomResourceDefinition {
    let text = json!({"type": "string"});
    let (name, schema) = match kind {
        StatusKind::Layer2 => {
            let interface = json!({"type": "object", "properties": {"name": text}});
            ("interfaces", interface)
        }
        StatusKind::Bgp => ("peers", text.clone()),
    };
    let mut fields = json!({"node": text, "serviceName": text, "serviceNamespace": text});
    fields[name] = json!({"type": "array", "items": schema});
    let resource = kind.resource();
    let singular = resource.strip_suffix("es").unwrap();
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{resource}.metallb.io")},
        "spec": {
            "group": "metallb.io", "scope": "Namespaced",
            "names": {
                "kind": kind.name(), "listKind": format!("{}List", kind.name()),
                "plural": resource, "singular": singular
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object"},
                    "status": {"type": "object", "properties": fields}
                }}}
            }]
        }
    }))
    .unwrap()
}

struct Case {
    client: kube::Client,
    kind: StatusKind,
    _server: TestServer,
}

impl Case {
    async fn new(kind: StatusKind) -> Self {
        let definitions = StatusKind::ALL.map(|kind| definition(kind).into()).to_vec();
        let server = TestServer::start_declared(definitions).await;
        let client = server.client().await;
        let metadata = json!({"metadata": {"name": METALLB_NAMESPACE}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(metadata).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        Self { client, kind, _server: server }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn objects(&self) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: "metallb.io".to_owned(),
            version: "v1beta1".to_owned(),
            api_version: "metallb.io/v1beta1".to_owned(),
            kind: self.kind.name().to_owned(),
            plural: self.kind.resource().to_owned(),
        };
        Api::namespaced_with(self.client.clone(), METALLB_NAMESPACE, &resource)
    }

    async fn create(&self, object: Value) -> DynamicObject {
        let object = serde_json::from_value(object).unwrap();
        self.objects().create(&PostParams::default(), &object).await.unwrap()
    }

    /// The agent of a node, which is created if it does not exist. Only what is announced makes it act.
    async fn agent(&self, name: &str) -> Agent {
        self.agent_that_reviews(name, Duration::from_secs(36_000)).await
    }

    async fn agent_that_reviews(&self, name: &str, review: Duration) -> Agent {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        // It may exist.
        let _ = self.nodes().create(&PostParams::default(), &node).await;
        let uid = self.nodes().get(name).await.unwrap().metadata.uid.unwrap();
        let writer = StatusWriter::new(self.client.clone(), self.kind, METALLB_NAMESPACE, name);
        let intervals = StatusIntervals { review, absence: review, spread: Duration::ZERO };
        let writer = writer.with_intervals(intervals);
        let announced = watch::Sender::new(None);
        let known = watch::Sender::new(NodeTaints { uid, keys: Vec::new() });
        let running =
            writer.clone().write_whenever_changed(announced.subscribe(), known.subscribe());
        Agent { announced, _known: known, running: tokio::spawn(running), writer }
    }

    /// All objects: name, and interfaces or peers.
    async fn listed(&self) -> Vec<(String, Value)> {
        let all = self.objects().list(&ListParams::default()).await.unwrap();
        let through = |object: &DynamicObject| match self.kind {
            StatusKind::Layer2 => object.data["status"]["interfaces"].clone(),
            StatusKind::Bgp => object.data["status"]["peers"].clone(),
        };
        let named = all.iter().map(|one| (one.metadata.name.clone().unwrap(), through(one)));
        named.collect()
    }

    async fn until(&self, expected: &[(&str, Value)]) {
        let mut found = Vec::new();
        let so = async {
            loop {
                found = self.listed().await;
                let found = found.iter().map(|(name, through)| (name.as_str(), through.clone()));
                if found.eq(expected.iter().cloned()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(SOON, so).await.is_ok();
        assert!(in_time, "expected {expected:?}, there are {found:?}");
    }
}

struct Agent {
    announced: watch::Sender<Option<AnnouncedServices>>,
    _known: watch::Sender<NodeTaints>,
    running: JoinHandle<()>,
    writer: StatusWriter,
}

impl Agent {
    /// What the node announces from now on: Services of the namespace `shop`.
    fn announces(&self, services: &[(&str, &[&str])]) {
        let services = services.iter().map(|(service, through)| {
            let through: BTreeSet<String> = through.iter().map(|&one| one.to_owned()).collect();
            (ServiceName::new("shop", service), through.into())
        });
        self.announced.send_replace(Some(services.collect()));
    }

    /// It ends as an agent that is replaced.
    async fn stop(self) {
        self.running.abort();
        let _ = self.running.await;
    }
}

fn interfaces(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

#[tokio::test]
async fn what_a_node_announces_on_links_is_an_object_of_metallb() {
    let case = Case::new(StatusKind::Layer2).await;
    let agent = case.agent("worker0").await;
    agent.announces(&[("web", &["eth0"])]);
    case.until(&[("l2-worker0.shop.web", interfaces(&["eth0"]))]).await;
    let object = case.objects().get("l2-worker0.shop.web").await.unwrap();
    assert_eq!(
        object.data["status"],
        json!({
            "node": "worker0", "serviceName": "web", "serviceNamespace": "shop",
            "interfaces": [{"name": "eth0"}]
        })
    );
    // As MetalLB's own are selected.
    let labels =
        "metallb.io/node=worker0,metallb.io/service-name=web,metallb.io/service-namespace=shop";
    let selected = case.objects().list(&ListParams::default().labels(labels)).await.unwrap();
    assert_eq!(selected.items.len(), 1);
    agent.announces(&[("api", &["eth0", "eth1"])]);
    case.until(&[
        ("l2-worker0.shop.api", interfaces(&["eth0", "eth1"])),
        ("l2-worker0.shop.web", interfaces(&["eth0"])),
    ])
    .await;
}

#[tokio::test]
async fn every_node_that_advertises_a_service_by_bgp_has_an_object() {
    let case = Case::new(StatusKind::Bgp).await;
    let (first, second) = (case.agent("a").await, case.agent("b").await);
    first.announces(&[("web", &["tor-a", "tor-b"])]);
    second.announces(&[("web", &["tor-b"])]);
    case.until(&[
        ("bgp-a.shop.web", json!(["tor-a", "tor-b"])),
        ("bgp-b.shop.web", json!(["tor-b"])),
    ])
    .await;
}

/// The next agent writes only what differs, and deletes what its node announces no longer.
#[tokio::test]
async fn a_restarted_agent_goes_on_with_the_objects_of_the_last_one() {
    let case = Case::new(StatusKind::Layer2).await;
    let agent = case.agent("a").await;
    agent.announces(&[("api", &["eth0"]), ("web", &["eth0"])]);
    let (api, web) = ("l2-a.shop.api", "l2-a.shop.web");
    case.until(&[(api, interfaces(&["eth0"])), (web, interfaces(&["eth0"]))]).await;
    agent.stop().await;
    let of_last = case.objects().get(web).await.unwrap();
    let next = case.agent("a").await;
    next.announces(&[("mail", &["eth1"]), ("web", &["eth0"])]);
    let mail = ("l2-a.shop.mail", interfaces(&["eth1"]));
    case.until(&[mail, (web, interfaces(&["eth0"]))]).await;
    let of_next = case.objects().get(web).await.unwrap();
    assert_eq!(of_last.metadata.resource_version, of_next.metadata.resource_version);
}

/// MetalLB's speaker deletes what its node does not announce.
#[tokio::test]
async fn while_metallb_writes_objects_there_are_none_of_this_node() {
    let case = Case::new(StatusKind::Layer2).await;
    let agent = case.agent_that_reviews("a", Duration::from_millis(20)).await;
    agent.announces(&[("web", &["eth0"])]);
    case.until(&[("l2-a.shop.web", interfaces(&["eth0"]))]).await;
    let labels = json!({
        "metallb.io/node": "a",
        "metallb.io/service-name": "web", "metallb.io/service-namespace": "shop"
    });
    let of_metallb = case
        .create(json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "ServiceL2Status",
            "metadata": {"name": "l2-x7fq2", "namespace": METALLB_NAMESPACE, "labels": labels}
        }))
        .await;
    case.until(&[("l2-x7fq2", Value::Null)]).await;
    agent.announces(&[("api", &["eth0"])]);
    let kept = case.objects().get("l2-x7fq2").await.unwrap();
    assert_eq!(kept.metadata.resource_version, of_metallb.metadata.resource_version);
    case.objects().delete("l2-x7fq2", &DeleteParams::default()).await.unwrap();
    case.until(&[("l2-a.shop.api", interfaces(&["eth0"]))]).await;
}

/// By the name that the agent would use, while the agent runs.
#[tokio::test]
async fn an_object_that_is_not_of_this_node_is_neither_adopted_nor_deleted() {
    let case = Case::new(StatusKind::Layer2).await;
    let others = case
        .create(json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "ServiceL2Status",
            "metadata": {
                "name": "l2-a.shop.web", "namespace": METALLB_NAMESPACE,
                "labels": {"app.kubernetes.io/managed-by": "millrace", "metallb.io/node": "not-a"}
            }
        }))
        .await;
    let agent = case.agent("a").await;
    agent.announces(&[("web", &["eth0"]), ("zeta", &["eth0"])]);
    // Written last, because the names are in order.
    let zeta = ("l2-a.shop.zeta", interfaces(&["eth0"]));
    case.until(&[("l2-a.shop.web", Value::Null), zeta]).await;
    agent.announces(&[]);
    agent.writer.delete_all().await.unwrap();
    case.until(&[("l2-a.shop.web", Value::Null)]).await;
    let kept = case.objects().get("l2-a.shop.web").await.unwrap();
    assert_eq!(kept.metadata.resource_version, others.metadata.resource_version);
}

/// Only the Node object that it has now owns the objects.
#[tokio::test]
async fn objects_of_a_former_node_of_the_name_are_replaced() {
    let case = Case::new(StatusKind::Layer2).await;
    let labels = json!({
        "app.kubernetes.io/managed-by": "millrace", "metallb.io/node": "a",
        "metallb.io/service-name": "web", "metallb.io/service-namespace": "shop"
    });
    case.create(json!({
        "apiVersion": "metallb.io/v1beta1", "kind": "ServiceL2Status",
        "metadata": {"name": "l2-a.shop.web", "namespace": METALLB_NAMESPACE, "labels": labels}
    }))
    .await;
    let agent = case.agent("a").await;
    agent.announces(&[("web", &["eth0"])]);
    case.until(&[("l2-a.shop.web", interfaces(&["eth0"]))]).await;
    let object = case.objects().get("l2-a.shop.web").await.unwrap();
    let owner = &object.metadata.owner_references.unwrap()[0];
    assert_eq!(Some(owner.uid.clone()), case.nodes().get("a").await.unwrap().metadata.uid);
}

#[tokio::test]
async fn objects_go_with_their_node_and_with_an_agent_that_hands_over() {
    let case = Case::new(StatusKind::Bgp).await;
    let (first, second) = (case.agent("a").await, case.agent("b").await);
    first.announces(&[("web", &["tor"])]);
    second.announces(&[("web", &["tor"])]);
    let of_first = ("bgp-a.shop.web", json!(["tor"]));
    case.until(&[of_first.clone(), ("bgp-b.shop.web", json!(["tor"]))]).await;
    let writer = second.writer.clone();
    second.stop().await;
    writer.delete_all().await.unwrap();
    case.until(&[of_first]).await;
    case.nodes().delete("a", &DeleteParams::default()).await.unwrap();
    case.until(&[]).await;
}
