//! What a cluster's controllers do, seen by clients.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::server::TestServer;

/// Waits until the condition holds. The limit is only for failures.
async fn until<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect(what);
}

fn endpoints(labels: Value) -> Endpoints {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "labels": labels},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}],
    }))
    .unwrap()
}

#[tokio::test]
async fn a_label_that_is_removed_from_endpoints_disappears_from_their_slice() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let all: Api<Endpoints> = Api::default_namespaced(client.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(client);
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let parameters = PostParams::default();
    services.create(&parameters, &serde_json::from_value(service).unwrap()).await.unwrap();
    all.create(&parameters, &endpoints(json!({"a": "1", "b": "2"}))).await.unwrap();
    let labels = async || {
        let slice = slices.get_opt("web-mirror-1").await.unwrap();
        slice.and_then(|slice| slice.metadata.labels).unwrap_or_default()
    };
    until("mirrored", async || labels().await.contains_key("b")).await;
    all.replace("web", &parameters, &endpoints(json!({"a": "1"}))).await.unwrap();
    until("removed", async || !labels().await.contains_key("b")).await;
    assert_eq!(labels().await.get("a").map(String::as_str), Some("1"));
}

#[tokio::test]
async fn an_ingress_without_a_class_gets_the_default_one_when_it_is_created() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let classes: Api<IngressClass> = Api::all(client.clone());
    let ingresses: Api<Ingress> = Api::default_namespaced(client);
    let create = async |name: &str, class: Value| {
        let ingress = json!({
            "metadata": {"name": name},
            "spec": {
                "ingressClassName": class,
                "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}},
            },
        });
        let ingress = serde_json::from_value(ingress).unwrap();
        let created = ingresses.create(&PostParams::default(), &ingress).await.unwrap();
        created.spec.unwrap().ingress_class_name
    };
    assert_eq!(create("before", Value::Null).await, None);
    let class = json!({
        "metadata": {"name": "front", "annotations": {
            "ingressclass.kubernetes.io/is-default-class": "true",
        }},
        "spec": {"controller": "example.com/front"},
    });
    let class = serde_json::from_value(class).unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
    assert_eq!(create("after", Value::Null).await.as_deref(), Some("front"));
    assert_eq!(create("own", json!("other")).await.as_deref(), Some("other"));
    // Those that exist stay.
    assert_eq!(ingresses.get("before").await.unwrap().spec.unwrap().ingress_class_name, None);
}

#[tokio::test]
async fn namespaces_that_everything_needs_cannot_be_deleted() {
    let server = TestServer::start().await;
    let namespaces: Api<Namespace> = Api::all(server.client().await);
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let error = namespaces.delete(name, &DeleteParams::default()).await.unwrap_err();
        let kube::Error::Api(status) = error else { panic!("{error}") };
        assert_eq!(status.code, 403, "{status:?}");
        assert!(status.message.contains("may not be deleted"), "{status:?}");
        let phase = namespaces.get(name).await.unwrap().status.and_then(|status| status.phase);
        assert_eq!(phase.as_deref(), Some("Active"));
    }
}
