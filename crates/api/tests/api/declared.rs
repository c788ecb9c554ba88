//! Kinds that the embedder declares, through the clients that real clusters have.

use futures::StreamExt;
use http_body_util::BodyExt;
use kube::Api;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::client::Body;
use lb_api::http::ClientRole;
use serde_json::{Value, json};

use super::server::TestServer;
use super::widgets::{self, Mode, Range, Widget};

const RANGES: &str = "/apis/test.example.com/v1alpha1/ranges";
const JSON: &str = "application/json";

async fn start() -> TestServer {
    TestServer::start_declared(widgets::all()).await
}

async fn send(
    client: &kube::Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> (u16, Value) {
    let request = hyper::Request::builder().method(method).uri(path);
    let request = request.header("content-type", content_type);
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let response = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

fn range(name: &str, spec: Value) -> Value {
    let type_ = ("test.example.com/v1alpha1", "Range");
    json!({"apiVersion": type_.0, "kind": type_.1, "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_declared_kind_has_defaults_a_generation_and_a_status_of_its_own() {
    let server = start().await;
    let ranges: Api<Range> = Api::all(server.client().await);
    let parameters = PostParams::default();
    let mut new = range("a", json!({"first": 1, "last": 9}));
    new["status"] = json!({"taken": 3});
    let created = ranges.create(&parameters, &serde_json::from_value(new).unwrap()).await.unwrap();
    assert!(created.spec.auto_assign && matches!(created.spec.mode, Mode::Shared));
    assert_eq!((created.metadata.generation, created.status.is_none()), (Some(1), true));

    let patch = Patch::Merge(json!({"status": {"taken": 4}, "spec": {"last": 5},
        "metadata": {"labels": {"a": "b"}}}));
    let patched = ranges.patch_status("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.status.unwrap().taken, Some(4));
    assert_eq!((patched.spec.last, patched.metadata.labels), (9, None));
    assert_eq!(patched.metadata.generation, Some(1));

    let patch = Patch::Merge(json!({"status": {"taken": 7}, "spec": {"last": 5}}));
    let patched = ranges.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.status.unwrap().taken, Some(4));
    assert_eq!((patched.spec.last, patched.metadata.generation), (5, Some(2)));
    ranges.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(ranges.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn violations_name_the_field() {
    let server = start().await;
    let client = server.client().await;
    let spec = |name: &str, value: Value| {
        let mut spec = json!({"first": 1, "last": 9});
        spec[name] = value;
        spec
    };
    let many = json!(["a", "b", "c", "d", "e"]);
    for (spec, expected) in [
        (json!({"last": 1}), "spec.first: Required value"),
        (
            spec("first", json!("x")),
            "spec.first: Invalid value: \"string\": spec.first in body must be of type integer: \
             \"string\"",
        ),
        (
            spec("first", json!(0)),
            "spec.first: Invalid value: 0: spec.first in body should be greater than or equal to 1",
        ),
        (
            spec("last", json!(70_000)),
            "spec.last: Invalid value: 70000: spec.last in body should be less than or equal to \
             65535",
        ),
        (
            spec("mode", json!("Other")),
            "spec.mode: Unsupported value: \"Other\": supported values: \"Shared\", \"Exclusive\"",
        ),
        (
            spec("names", json!(["a", "B"])),
            "spec.names[1]: Invalid value: \"B\": spec.names[1] in body should match '^[a-z]+$'",
        ),
        (
            spec("names", json!(["abcdefghi"])),
            "spec.names[0]: Too long: may not be more than 8 bytes",
        ),
        (spec("names", many), "spec.names: Too many: 5: must have at most 4 items"),
        (spec("names", json!(["a", "a"])), "spec.names[1]: Duplicate value: \"a\""),
        (
            spec("peers", json!([{"name": "a"}, {"name": "a"}])),
            "spec.peers[1]: Duplicate value: {\"name\":\"a\"}",
        ),
        (spec("peers", json!([{}])), "spec.peers[0].name: Required value"),
        (
            spec("peers", json!([{"name": "a", "address": "x"}])),
            "spec.peers[0].address: Invalid value: \"x\": spec.peers[0].address in body must be of \
             type ipv4: \"x\"",
        ),
        (
            spec("labels", json!({"a": 1})),
            "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type \
             string: \"integer\"",
        ),
    ] {
        let (code, status) = send(&client, "POST", RANGES, JSON, &range("a", spec)).await;
        let expected = format!("Range.test.example.com \"a\" is invalid: {expected}");
        assert_eq!((code, status["message"].as_str()), (422, Some(expected.as_str())));
    }
    // A rule that the schema cannot express.
    let wrong = range("a", json!({"first": 9, "last": 1}));
    let (code, status) = send(&client, "POST", RANGES, JSON, &wrong).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("self.spec.first <= self.spec.last"), "{status}");
    // Fields that the kind does not have.
    let wrong = range("a", spec("peers", json!([{"name": "a", "colour": 1}])));
    let strict = format!("{RANGES}?fieldValidation=Strict");
    let (code, status) = send(&client, "POST", &strict, JSON, &wrong).await;
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("unknown field \"spec.peers[0].colour\""), "{message}");
    assert_eq!(code, 400);
    let (code, created) = send(&client, "POST", RANGES, JSON, &wrong).await;
    assert_eq!((code, &created["spec"]["peers"]), (201, &json!([{"name": "a"}])));
}

#[tokio::test]
async fn server_side_apply_merges_lists_by_their_keys() {
    let server = start().await;
    let ranges: Api<Range> = Api::all(server.client().await);
    let apply = async |manager: &str, peers: Value, names: Value| {
        let spec = json!({"first": 1, "last": 9, "peers": peers, "names": names});
        let patch = Patch::Apply(range("a", spec));
        ranges.patch("a", &PatchParams::apply(manager), &patch).await
    };
    apply("one", json!([{"name": "a", "weight": 1}]), json!(["a"])).await.unwrap();
    let both = apply("two", json!([{"name": "b"}]), json!(["b"])).await.unwrap();
    let names: Vec<&str> = both.spec.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!((names, both.spec.names.len()), (vec!["a", "b"], 2));
    let conflict = apply("two", json!([{"name": "a", "weight": 2}]), json!([])).await.unwrap_err();
    let kube::Error::Api(status) = conflict else { panic!("{conflict}") };
    assert!(status.message.contains(".spec.peers[name=\"a\"].weight"), "{}", status.message);
    // What only one applied disappears when it stops.
    let one = apply("two", json!([]), json!([])).await.unwrap();
    assert_eq!((one.spec.peers.len(), one.spec.names.len()), (1, 1));
}

#[tokio::test]
async fn forms_that_declared_kinds_do_not_have_are_refused() {
    let server = start().await;
    let client = server.client().await;
    let new = range("a", json!({"first": 1, "last": 9}));
    assert_eq!(send(&client, "POST", RANGES, JSON, &new).await.0, 201);
    let path = format!("{RANGES}/a");
    let strategic = "application/strategic-merge-patch+json";
    let (code, status) = send(&client, "PATCH", &path, strategic, &json!({})).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 415 && message.ends_with("application/apply-patch+yaml"), "{message}");
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(send(&client, "POST", RANGES, protobuf, &new).await.0, 415);
    let (code, status) = send(&client, "PUT", &path, JSON, &new).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 422 && message.contains("metadata.resourceVersion"), "{message}");
    let missing = format!("{RANGES}/b");
    assert_eq!(send(&client, "PUT", &missing, JSON, &range("b", json!({}))).await.0, 404);
    let widgets = "/apis/test.example.com/v1alpha1/namespaces/default/widgets/w/status";
    assert_eq!(send(&client, "GET", widgets, JSON, &Value::Null).await.0, 404);
    // Without namespaces.
    let namespaced = "/apis/test.example.com/v1alpha1/namespaces/default/ranges";
    assert_eq!(send(&client, "GET", namespaced, JSON, &Value::Null).await.0, 404);
}

#[tokio::test]
async fn declared_kinds_are_listed_watched_and_deleted_with_their_namespace() {
    let server = start().await;
    let client = server.client().await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let widgets: Api<Widget> = Api::namespaced(client.clone(), "shop");
    let everywhere: Api<Widget> = Api::all(client);
    let mut watch = everywhere.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let widget = json!({
        "apiVersion": "test.example.com/v1alpha1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"size": 3},
    });
    let widget = serde_json::from_value(widget).unwrap();
    widgets.create(&PostParams::default(), &widget).await.unwrap();
    assert_eq!(everywhere.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let Some(Ok(WatchEvent::Added(added))) = watch.next().await else { panic!("not added") };
    assert_eq!(added.spec.size, Some(3));
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let Some(Ok(WatchEvent::Deleted(_))) = watch.next().await else { panic!("not deleted") };
}

#[tokio::test]
async fn discovery_and_openapi_have_declared_kinds() {
    let server = start().await;
    let client = server.client().await;
    let (_, group) = send(&client, "GET", "/apis/test.example.com", JSON, &Value::Null).await;
    assert_eq!(group["preferredVersion"]["version"], "v1alpha1");
    let path = "/apis/test.example.com/v1alpha1";
    let (_, resources) = send(&client, "GET", path, JSON, &Value::Null).await;
    let resources = resources["resources"].as_array().unwrap();
    let names: Vec<&str> = resources.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["ranges", "ranges/status", "widgets"]);
    assert_eq!(resources[0]["shortNames"], json!(["rg"]));
    for (path, schemas, prefix) in [
        (
            "/openapi/v3/apis/test.example.com/v1alpha1",
            "/components/schemas",
            "#/components/schemas/",
        ),
        ("/openapi/v2", "/definitions", "#/definitions/"),
    ] {
        let (_, document) = send(&client, "GET", path, JSON, &Value::Null).await;
        let schemas = document.pointer(schemas).unwrap();
        let range = &schemas["com.example.test.v1alpha1.Range"];
        let spec = &range["properties"]["spec"]["properties"];
        assert_eq!(spec["first"]["description"], "The first number of the range.");
        assert_eq!(spec["names"]["x-kubernetes-list-type"], "set");
        assert_eq!(range["x-kubernetes-group-version-kind"][0]["kind"], "Range");
        // Every reference has a target.
        for reference in document.to_string().split(&format!("\"{prefix}")).skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.get(name).is_some(), "{name}");
        }
        let path = &document["paths"][format!("{RANGES}/{{name}}")]["patch"];
        assert!(!path.is_null() && !path.to_string().contains("strategic"), "{path}");
    }
}

#[tokio::test]
async fn agents_read_declared_kinds_and_write_their_status_and_viewers_read() {
    let server = start().await;
    let new = range("a", json!({"first": 1, "last": 9}));
    let client = server.client().await;
    assert_eq!(send(&client, "POST", RANGES, JSON, &new).await.0, 201);
    let status = json!({"status": {"taken": 1}});
    let merge = "application/merge-patch+json";
    let (one, its_status) = (format!("{RANGES}/a"), format!("{RANGES}/a/status"));
    for (role, reads, reports, writes) in [
        (ClientRole::Agent, 200, 200, 403),
        (ClientRole::Viewer, 200, 403, 403),
        (ClientRole::Proxy, 403, 403, 403),
        (ClientRole::Administrator, 200, 200, 200),
    ] {
        let client = server.client_as(role.name(), role).await;
        let codes = (
            send(&client, "GET", RANGES, JSON, &Value::Null).await.0,
            send(&client, "PATCH", &its_status, merge, &status).await.0,
            send(&client, "PATCH", &one, merge, &json!({})).await.0,
        );
        assert_eq!(codes, (reads, reports, writes), "{}", role.name());
        let review = json!({"spec": {"resourceAttributes": {
            "verb": "patch", "group": "test.example.com", "resource": "ranges",
            "subresource": "status",
        }}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let (_, review) = send(&client, "POST", path, JSON, &review).await;
        assert_eq!(review["status"]["allowed"], reports == 200, "{}", role.name());
    }
}

/// What a cluster gets is the declaration itself, and survives being written to a file.
#[test]
fn the_manifest_for_real_clusters_is_the_declaration() {
    for declaration in widgets::all() {
        let manifest = serde_norway::to_string(&declaration.definition).unwrap();
        let read = serde_norway::from_str(&manifest).unwrap();
        assert_eq!(declaration.definition, read);
        let read = lb_api::declared::KindDeclaration { definition: read, ..declaration };
        lb_api::declared::declare_kind(&read).unwrap();
        assert!(manifest.contains("kind: CustomResourceDefinition"), "{manifest}");
    }
}
