//! Single requests that would cost much more than their size: each is refused by a limit that the
//! response names, or is cheap. Without the limits they take hours or all memory, so no time is
//! measured.

use serde_json::{Value, json};

use super::raw::send;
use super::server::TestServer;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const JSON: &str = "application/json";

async fn refused(request: &str, content_type: &str, body: &str, code: u16, limit: &str) {
    let server = TestServer::start().await;
    let secret = json!({"metadata": {"name": "web"}, "stringData": {"key": "x".repeat(1000)}});
    let path = format!("POST {SECRETS}");
    let (status, body_of) = send(&server, &path, JSON, secret.to_string().as_bytes()).await;
    assert_eq!(status, 201, "{body_of}");
    let (status, answer) = send(&server, request, content_type, body.as_bytes()).await;
    assert_eq!(status, code, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(message.contains(limit), "{message}");
    let (status, _) = send(&server, &format!("GET {SECRETS}/web"), JSON, b"").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_json_patch_that_doubles_the_object() {
    let copies: Vec<Value> = (0..40)
        .map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")}))
        .collect();
    let patch = Value::Array(copies).to_string();
    let request = format!("PATCH {SECRETS}/web");
    refused(&request, "application/json-patch+json", &patch, 413, "exceeds the limit").await;
}

#[tokio::test]
async fn yaml_aliases_of_a_long_list() {
    let (list, aliases) = (vec!["1"; 5000].join(", "), vec!["*a"; 100].join(", "));
    let body = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: web}}\na: &a [{list}]\nb: [{aliases}]\n"
    );
    refused(&format!("POST {SECRETS}"), "application/yaml", &body, 400, "200000 values").await;
}

#[tokio::test]
async fn a_list_of_many_values() {
    let body = format!("{{\"x\": [0{}]}}", ",0".repeat(1_000_000));
    refused(&format!("POST {SECRETS}"), JSON, &body, 400, "200000 values").await;
}

#[tokio::test]
async fn an_object_that_grows_with_each_patch() {
    let server = TestServer::start().await;
    let secret = json!({"metadata": {"name": "web"}});
    let path = format!("POST {SECRETS}");
    assert_eq!(send(&server, &path, JSON, secret.to_string().as_bytes()).await.0, 201);
    let owners = |from: usize| -> Value {
        (from..from + 5000)
            .map(|n| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": format!("{n}")}))
            .collect()
    };
    let request = format!("PATCH {SECRETS}/web");
    let mut statuses = Vec::new();
    for round in 0..6 {
        let patch = json!({"metadata": {"ownerReferences": owners(round * 5000)}}).to_string();
        let type_ = "application/strategic-merge-patch+json";
        statuses.push(send(&server, &request, type_, patch.as_bytes()).await.0);
    }
    assert_eq!((statuses[0], statuses[5]), (200, 413), "{statuses:?}");
}

#[tokio::test]
async fn a_selector_of_many_requirements() {
    let server = TestServer::start().await;
    let selector = vec!["a!=b"; 1000].join(",");
    let request = format!("GET {SECRETS}?labelSelector={selector}");
    let (status, answer) = send(&server, &request, JSON, b"").await;
    assert!(status == 400 && answer.contains("limit is 256"), "{status} {answer}");
}
