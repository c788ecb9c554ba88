//! What a comparison with a real API server found (`cargo xtask conformance api`).

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::server::TestServer;
use super::widgets;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Session {
    client: kube::Client,
    #[expect(dead_code, reason = "ends with the test")]
    server: TestServer,
}

impl Session {
    async fn start() -> Self {
        let server = TestServer::start_declared(widgets::all()).await;
        Self { client: server.client().await, server }
    }

    /// The status and the body of the response.
    async fn send(&self, method: &str, path: &str, type_: &str, body: Value) -> (u16, Value) {
        let request = hyper::Request::builder().method(method).uri(path);
        let request = request.header("content-type", type_);
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = request.body(Body::from(body.into_bytes())).unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, "application/json", body).await
    }

    async fn apply(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("PATCH", path, "application/apply-patch+yaml", body).await
    }

    async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("PUT", path, "application/json", body).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", path, "", Value::Null).await
    }
}

#[tokio::test]
async fn objects_of_all_namespaces_cannot_be_deleted_or_created_by_one_request() {
    let session = Session::start().await;
    let body = json!({"metadata": {"name": "kept", "namespace": "default"}});
    assert_eq!(session.post(CONFIG_MAPS, body.clone()).await.0, 201);
    let widgets = "/apis/test.example.com/v1alpha1/widgets";
    for (path, code) in [("/api/v1/configmaps", 405), (widgets, 404)] {
        assert_eq!(session.delete(path).await.0, code, "{path}");
        assert_eq!(session.post(path, body.clone()).await.0, code, "{path}");
        assert_eq!(session.get(path).await.0, 200, "{path}");
    }
    assert_eq!(session.get(&format!("{CONFIG_MAPS}/kept")).await.0, 200);
    assert_eq!(session.delete(CONFIG_MAPS).await.0, 200);
    assert_eq!(session.get(&format!("{CONFIG_MAPS}/kept")).await.0, 404);
}

#[tokio::test]
async fn namespaces_are_deleted_one_by_one() {
    let session = Session::start().await;
    let (code, status) = session.delete("/api/v1/namespaces").await;
    assert_eq!((code, &status["reason"]), (405, &json!("MethodNotAllowed")));
    let (_, resources) = session.get("/api/v1").await;
    for resource in resources["resources"].as_array().unwrap() {
        let verbs = resource["verbs"].as_array().unwrap();
        let name = resource["name"].as_str().unwrap();
        let deletes = verbs.iter().any(|verb| verb == "deletecollection");
        assert_eq!(deletes, name != "namespaces" && !name.contains('/'), "{name}");
    }
}

#[tokio::test]
async fn what_is_refused_in_a_terminating_namespace_says_so_to_controllers() {
    let session = Session::start().await;
    let namespace = json!({"metadata": {"name": "ending", "finalizers": ["example.com/a"]}});
    assert_eq!(session.post("/api/v1/namespaces", namespace).await.0, 201);
    assert_eq!(session.delete("/api/v1/namespaces/ending").await.0, 200);
    let object = json!({"metadata": {"name": "late"}});
    let (code, status) = session.post("/api/v1/namespaces/ending/configmaps", object).await;
    assert_eq!(code, 403);
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "NamespaceTerminating",
            "message": "namespace ending is being terminated",
            "field": "metadata.namespace",
        }])
    );
}

/// Also where unknown fields are to be ignored: a manager cannot own them.
#[tokio::test]
async fn an_applied_object_must_not_contain_unknown_fields() {
    let session = Session::start().await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "colour": "red"},
        "spec": {"ports": [{"port": 80, "prot": "TCP"}], "selector": {"any": "label"}},
    });
    let path = "/api/v1/namespaces/default/services/web?fieldManager=a&fieldValidation=Ignore";
    let (code, status) = session.apply(path, service).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            500,
            "failed to create typed patch object (/web; /v1, Kind=Service): errors:\n  \
             .metadata.colour: field not declared in schema\n  \
             .spec.ports[port=80,protocol=\"TCP\"].prot: field not declared in schema"
        )
    );
    let widget = json!({
        "apiVersion": "test.example.com/v1alpha1", "kind": "Widget",
        "metadata": {"name": "a"}, "spec": {"colour": "red"},
    });
    let path = "/apis/test.example.com/v1alpha1/namespaces/default/widgets/a?fieldManager=a";
    let (code, status) = session.apply(path, widget).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            500,
            "failed to create typed patch object (/a; test.example.com/v1alpha1, Kind=Widget): \
             .spec.colour: field not declared in schema"
        )
    );
}

#[tokio::test]
async fn details_leave_out_what_is_empty() {
    let session = Session::start().await;
    let (_, status) = session.post(CONFIG_MAPS, json!({"metadata": {}})).await;
    let details = status["details"].as_object().unwrap();
    assert_eq!(details.keys().collect::<Vec<_>>(), ["causes", "kind"], "{status}");
    let object = |data| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let path = format!("{CONFIG_MAPS}/a?fieldManager=");
    assert_eq!(session.apply(&(path.clone() + "a"), object(json!({"a": "1"}))).await.0, 201);
    let (code, status) = session.apply(&(path + "b"), object(json!({"a": "2"}))).await;
    assert_eq!(code, 409);
    let details = status["details"].as_object().unwrap();
    assert_eq!(details.keys().collect::<Vec<_>>(), ["causes"], "{status}");
}

/// The fields that the only manager of an object owns.
fn owned_fields(object: &Value) -> &Value {
    let managers = object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(managers.len(), 1, "{managers:?}");
    &managers[0]["fieldsV1"]
}

#[tokio::test]
async fn a_client_owns_only_what_it_sends() {
    let session = Session::start().await;
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}], "clusterIP": "10.96.0.20"},
    });
    let (_, service) = session.post("/api/v1/namespaces/default/services", service).await;
    let spec = owned_fields(&service)["f:spec"].as_object().unwrap();
    let expected =
        ["f:clusterIP", "f:internalTrafficPolicy", "f:ports", "f:sessionAffinity", "f:type"];
    assert_eq!(spec.keys().collect::<Vec<_>>(), expected);
    let namespace = json!({"metadata": {"name": "new"}});
    let (_, namespace) = session.post("/api/v1/namespaces", namespace).await;
    let name = json!({".": {}, "f:kubernetes.io/metadata.name": {}});
    assert_eq!(*owned_fields(&namespace), json!({"f:metadata": {"f:labels": name}}));
    // The parts of a declared kind are not there before.
    let widget = json!({"metadata": {"name": "a"}, "spec": {"size": 1}});
    let widgets = "/apis/test.example.com/v1alpha1/namespaces/default/widgets";
    let (_, widget) = session.post(widgets, widget).await;
    assert_eq!(*owned_fields(&widget), json!({"f:spec": {".": {}, "f:size": {}}}));
}

/// A PUT without the status leaves it, and its owner.
#[tokio::test]
async fn the_owner_of_a_status_stays_when_the_object_is_replaced() {
    let session = Session::start().await;
    let node = json!({"metadata": {"name": "other", "labels": {"a": "b"}}});
    assert_eq!(session.post("/api/v1/nodes", node.clone()).await.0, 201);
    let path = "/api/v1/nodes/other";
    let status = json!({"status": {"phase": "Running"}});
    let type_ = "application/merge-patch+json";
    let status_path = format!("{path}/status?fieldManager=kubelet");
    assert_eq!(session.send("PATCH", &status_path, type_, status).await.0, 200);
    let (code, node) = session.put(path, node).await;
    assert_eq!((code, &node["status"]["phase"]), (200, &json!("Running")));
    let managers = node["metadata"]["managedFields"].as_array().unwrap();
    let kubelet = managers.iter().find(|entry| entry["manager"] == "kubelet").unwrap();
    // Without a dot: the status is there before it has fields.
    assert_eq!(kubelet["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[tokio::test]
async fn a_put_needs_a_name_and_a_delete_takes_options_only() {
    let session = Session::start().await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    assert_eq!(session.post(CONFIG_MAPS, object.clone()).await.0, 201);
    let path = format!("{CONFIG_MAPS}/a");
    let (code, status) = session.put(&path, json!({"data": {"a": "b"}})).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (400, "the name of the object (a based on URL) was undeterminable: name must be provided")
    );
    let deletion = |body| session.send("DELETE", &path, "application/json", body);
    assert_eq!(deletion(object).await.0, 400);
    assert_eq!(session.get(&path).await.0, 200);
    for version in ["v1", "meta.k8s.io/v1", "apps/v1"] {
        let options = json!({"apiVersion": version, "kind": "DeleteOptions", "dryRun": ["All"]});
        assert_eq!(deletion(options).await.0, 200, "{version}");
    }
}

#[tokio::test]
async fn an_invalid_object_is_invalid_even_if_its_name_is_taken() {
    let session = Session::start().await;
    let object = json!({"metadata": {"name": "a"}});
    assert_eq!(session.post(CONFIG_MAPS, object.clone()).await.0, 201);
    assert_eq!(session.post(CONFIG_MAPS, object).await.0, 409);
    let invalid = json!({"metadata": {"name": "a", "labels": {"a b": "c"}}});
    assert_eq!(session.post(CONFIG_MAPS, invalid).await.0, 422);
    let marked = json!({"metadata": {"name": "b", "finalizers": ["example.com/a"]}});
    assert_eq!(session.post(CONFIG_MAPS, marked.clone()).await.0, 201);
    assert_eq!(session.delete(&format!("{CONFIG_MAPS}/b")).await.0, 200);
    let (_, status) = session.post(CONFIG_MAPS, marked).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!(message, "object is being deleted: configmaps \"b\" already exists");
}

#[tokio::test]
async fn a_delete_names_what_its_preconditions_do_not_match() {
    let session = Session::start().await;
    let object = json!({"metadata": {"name": "a"}});
    let (_, object) = session.post(CONFIG_MAPS, object).await;
    let path = format!("{CONFIG_MAPS}/a");
    let options = json!({"preconditions": {"uid": "x"}});
    let (code, status) = session.send("DELETE", &path, "application/json", options).await;
    let uid = object["metadata"]["uid"].as_str().unwrap();
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x) does not \
         match the UID in record ({uid}). The object might have been deleted and then recreated"
    );
    assert_eq!((code, status["message"].as_str().unwrap()), (409, message.as_str()));
    let options = json!({"preconditions": {"resourceVersion": "1"}});
    let (code, status) = session.send("DELETE", &path, "application/json", options).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!(code, 409);
    assert!(message.contains("the ResourceVersion in the precondition (1)"), "{message}");
    assert_eq!(session.get(&path).await.0, 200);
}
