//! Every verb with every kind, content type, patch type and option, against the documented
//! behaviour of API servers: the API reference, "API concepts" and "Server-side apply" in the
//! documentation of Kubernetes.
//!
//! A case that is refused or a dry run must leave nothing behind, so the object is compared after
//! each.

mod cases;
mod kinds;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use serde_json::{Value, json};

use super::server::TestServer;
use super::widgets;
use cases::{
    APPLY, CREATED, Case, INVALID, JSON, JSON_PATCH, MERGE, NOT_FOUND, OK, STRATEGIC, case,
    creations, harmless, lists, missing, nothing,
};
use kinds::{Kind, kinds};

struct Response {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

/// Not kube-rs, which repeats what fails with `Retry-After`.
struct Client {
    send: Box<dyn Fn(hyper::Request<Full<Bytes>>) -> legacy::ResponseFuture>,
    server: String,
}

impl Client {
    async fn of(server: &TestServer) -> Self {
        let https = server.config().await.rustls_https_connector().unwrap();
        let client = legacy::Client::builder(TokioExecutor::new()).build(https);
        let send = Box::new(move |request| client.request(request));
        Self { send, server: format!("https://{}", server.server.address) }
    }

    async fn send(&self, method: &str, path: &str, type_: &str, body: &str) -> Response {
        let request = hyper::Request::builder().method(method).uri(self.server.clone() + path);
        let request = request.header("content-type", type_).header("user-agent", "tester/1");
        let body = Full::from(body.as_bytes().to_vec());
        let response = (self.send)(request.body(body).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|warning| warning.to_str().unwrap().to_owned()).collect();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Response { code, body: serde_json::from_slice(&body).unwrap_or_default(), warnings }
    }
}

struct Run {
    client: Client,
    wrong: Vec<String>,
}

impl Run {
    async fn check(&mut self, of: &str, path: &str, case: &Case) -> Response {
        let path = format!("{path}{}", case.suffix);
        let response = self.client.send(case.method, &path, case.type_, &case.body).await;
        let reason = response.body["reason"].as_str().filter(|_| response.code >= 300);
        let actual = (response.code, reason.unwrap_or_default());
        if actual != (case.code, case.reason) {
            let expected = (case.code, case.reason);
            let message = response.body["message"].as_str().unwrap_or_default();
            let name = case.name;
            self.wrong.push(format!("{of}, {name}: {actual:?}, not {expected:?}: {message}"));
        }
        response
    }

    fn expect(&mut self, what: &str, holds: bool) {
        if !holds {
            self.wrong.push(what.to_owned());
        }
    }
}

#[tokio::test]
async fn every_verb_kind_and_option_behaves_as_documented() {
    let server = TestServer::start_declared(widgets::all()).await;
    let mut run = Run { client: Client::of(&server).await, wrong: Vec::new() };
    for kind in kinds() {
        let of = format!("{} {}", kind.api_version, kind.kind);
        let collection = kind.collection();
        let object = kind.object(json!({"name": "old", "labels": {"a": "b"}}));
        let created = case("create", "POST", "", (JSON, object.to_string()), CREATED);
        let old = run.check(&of, &collection, &created).await.body;
        let metadata = &old["metadata"];
        run.expect(
            &format!("{of}: the server's metadata: {metadata}"),
            metadata["uid"].is_string()
                && metadata["creationTimestamp"].is_string()
                && metadata["managedFields"][0]["manager"] == "tester"
                && old["apiVersion"] == kind.api_version
                && old["kind"] == kind.kind,
        );
        let revision = old["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let own = format!("{collection}/old");
        for case in creations(&kind) {
            run.check(&of, &collection, &case).await;
            let new = run.client.send("GET", &format!("{collection}/new"), JSON, "").await;
            run.expect(&format!("{of}, {}: created an object", case.name), new.code == 404);
        }
        for case in lists(&revision) {
            let response = run.check(&format!("{of} list"), &collection, &case).await;
            let is_list = response.code != 200 || response.body["items"].is_array();
            run.expect(&format!("{of}, {}: not a list", case.name), is_list);
        }
        for case in harmless(&kind, &old) {
            run.check(&of, &own, &case).await;
            let now = run.client.send("GET", &own, JSON, "").await.body;
            run.expect(&format!("{of}, {}: changed the object", case.name), now == old);
        }
        for case in missing(&kind) {
            let path = format!("{collection}/missing");
            run.check(&format!("{of}, missing"), &path, &case).await;
            let now = run.client.send("GET", &path, JSON, "").await;
            run.expect(&format!("{of}, {}: created an object", case.name), now.code == 404);
        }
        unknown_fields_are_reported(&mut run, &kind, &of).await;
        writes_change_the_object(&mut run, &kind, &of, &own).await;
        deletion(&mut run, &kind, &of, &own).await;
    }
    assert!(run.wrong.is_empty(), "{} differ:\n{}", run.wrong.len(), run.wrong.join("\n"));
}

/// By default with a warning, and silently if the client wishes so.
async fn unknown_fields_are_reported(run: &mut Run, kind: &Kind, of: &str) {
    let mut object = kind.object(json!({"name": "new"}));
    object["unknown"] = json!(1);
    let deprecated = usize::from(kind.kind == "Endpoints");
    for (suffix, count) in [("", 1), ("&fieldValidation=Warn", 1), ("&fieldValidation=Ignore", 0)] {
        let path = format!("{}?dryRun=All{suffix}", kind.collection());
        let response = run.client.send("POST", &path, JSON, &object.to_string()).await;
        let warnings = response.warnings.len() - deprecated.min(response.warnings.len());
        run.expect(
            &format!("{of}{suffix}: warnings {:?}", response.warnings),
            response.code == 201 && warnings == count && response.body["unknown"].is_null(),
        );
    }
}

/// Each way to write changes the object, and its version.
async fn writes_change_the_object(run: &mut Run, kind: &Kind, of: &str, own: &str) {
    let label = |value: &str| json!({"metadata": {"labels": {"a": value}}}).to_string();
    let add = json!([{"op": "add", "path": "/metadata/labels/a", "value": "2"}]).to_string();
    let applied = kind.object(json!({"name": "old", "labels": {"a": "3"}})).to_string();
    let mut writes = vec![
        (MERGE, "", label("1"), "1"),
        (JSON_PATCH, "", add, "2"),
        (APPLY, "?fieldManager=b&force=true", applied, "3"),
    ];
    if kind.typed {
        writes.push((STRATEGIC, "", label("4"), "4"));
    }
    let mut last = Value::Null;
    for (type_, suffix, body, expected) in writes {
        let written = case("write", "PATCH", suffix, (type_, body), OK);
        let body = run.check(of, own, &written).await.body;
        let metadata = &body["metadata"];
        run.expect(
            &format!("{of}, {type_}: {metadata}"),
            metadata["labels"]["a"] == expected && metadata["resourceVersion"] != last,
        );
        last = metadata["resourceVersion"].clone();
    }
    let mut object = run.client.send("GET", own, JSON, "").await.body;
    object["metadata"]["labels"]["a"] = json!("5");
    let replaced = case("replace", "PUT", "?fieldManager=c", (JSON, object.to_string()), OK);
    let body = run.check(of, own, &replaced).await.body;
    run.expect(&format!("{of}: not replaced"), body["metadata"]["labels"]["a"] == "5");
    let managers = body["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = managers.iter().filter_map(|one| one["manager"].as_str()).collect();
    run.expect(&format!("{of}: managers {names:?}"), names.contains(&"c"));
}

/// With finalizers the object is marked; its last finalizer deletes it.
async fn deletion(run: &mut Run, kind: &Kind, of: &str, own: &str) {
    let finalizers = |list: Value| {
        let body = json!({"metadata": {"finalizers": list}}).to_string();
        case("finalizers", "PATCH", "", (MERGE, body), OK)
    };
    run.check(of, own, &finalizers(json!(["example.com/a"]))).await;
    let delete = case("delete with a finalizer", "DELETE", "", nothing(), OK);
    let marked = run.check(of, own, &delete).await.body;
    run.expect(
        &format!("{of}: not marked: {marked}"),
        marked["kind"] == kind.kind && marked["metadata"]["deletionTimestamp"].is_string(),
    );
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}).to_string();
    let more = case("a finalizer while deleted", "PATCH", "", (MERGE, more), INVALID);
    run.check(of, own, &more).await;
    if kind.kind == "Namespace" {
        // Its own finalizer is the collector's.
        run.check(of, own, &finalizers(json!(null))).await;
        return;
    }
    run.check(of, own, &finalizers(json!(null))).await;
    run.check(of, own, &case("get the deleted", "GET", "", nothing(), NOT_FOUND)).await;
    // Without finalizers at once.
    let path = kind.collection();
    let object = kind.object(json!({"name": "old"})).to_string();
    run.check(of, &path, &case("create", "POST", "", (JSON, object), CREATED)).await;
    let gone = run.check(of, own, &case("delete", "DELETE", "", nothing(), OK)).await.body;
    let returned = if kind.returns_deleted { kind.kind } else { "Status" };
    run.expect(&format!("{of}: DELETE returned {gone}"), gone["kind"] == returned);
    run.check(of, own, &case("get the deleted", "GET", "", nothing(), NOT_FOUND)).await;
    let none = "?labelSelector=never%3Dset";
    let collection = case("delete none of the collection", "DELETE", none, nothing(), OK);
    run.check(of, &path, &collection).await;
}
