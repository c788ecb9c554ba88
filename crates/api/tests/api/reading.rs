//! Other forms of responses, through plain requests.

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::server::TestServer;

async fn send(
    client: &kube::Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut request = hyper::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.as_bytes().to_vec())).unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    let body = response.into_body().collect().await.unwrap().to_bytes().to_vec();
    (code, headers, body)
}

async fn get(client: &kube::Client, path: &str, accept: &str) -> (u16, Value) {
    let (code, _, body) = send(client, "GET", path, &[("accept", accept)], "").await;
    (code, serde_json::from_slice(&body).unwrap())
}

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test]
async fn a_table_has_columns_and_the_objects_metadata() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let (code, _, _) = send(&client, "POST", SERVICES, &[], &service.to_string()).await;
    assert_eq!(code, 201);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) = get(&client, SERVICES, accept).await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "web");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let (_, partial) = get(&client, SERVICES, accept).await;
    assert_eq!(partial["items"][0]["metadata"]["name"], "web");
    assert!(partial["items"][0].get("spec").is_none());
    let (code, status) = get(&client, SERVICES, "application/vnd.kubernetes.protobuf").await;
    assert_eq!((code, &status["reason"]), (406, &json!("NotAcceptable")));
}

#[tokio::test]
async fn deprecated_watch_paths_watch() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let path = "/api/v1/watch/namespaces/default?resourceVersion=0&timeoutSeconds=1";
    let (code, _, body) = send(&client, "GET", path, &[], "").await;
    assert_eq!(code, 200);
    let event: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(event["type"], "ADDED");
    assert_eq!(event["object"]["metadata"]["name"], "default");
}

#[tokio::test]
async fn a_watch_may_have_any_timeout() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let path = format!("{SERVICES}?watch=true&timeoutSeconds={}", i64::MAX);
    let request = hyper::Request::get(path).body(Body::empty()).unwrap();
    assert_eq!(client.send(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn aggregated_discovery_is_sent_on_request() {
    let server = TestServer::start().await;
    let client = server.client().await;
    for version in ["v2", "v2beta1"] {
        let accept = format!(
            "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList,\
             application/json"
        );
        let (_, headers, body) = send(&client, "GET", "/apis", &[("accept", &accept)], "").await;
        let type_ = headers.iter().find(|(name, _)| name == "content-type").unwrap();
        assert!(type_.1.contains("as=APIGroupDiscoveryList"), "{type_:?}");
        let list: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        let names: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|group| group["metadata"]["name"].as_str())
            .collect();
        assert!(names.contains(&"discovery.k8s.io"), "{names:?}");
    }
    let (_, groups) = get(&client, "/apis", "application/json").await;
    assert_eq!(groups["kind"], "APIGroupList");
}

#[tokio::test]
async fn openapi_declares_that_the_server_validates_patches() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let (_, index) = get(&client, "/openapi/v3", "application/json").await;
    let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let (_, headers, body) = send(&client, "GET", &url, &[], "").await;
    let document: Value = serde_json::from_slice(&body).unwrap();
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/services/{name}"]["patch"];
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"));
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Service");
    let tag = &headers.iter().find(|(name, _)| name == "etag").unwrap().1;
    let (code, _, body) = send(&client, "GET", &url, &[("if-none-match", tag)], "").await;
    assert_eq!((code, body.len()), (304, 0));
    // Every reference has a target.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn yaml_is_accepted_and_oddities_are_warnings() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let body = "metadata: {name: web}\nspec: {ports: [{port: 80}], colour: red}\n";
    let headers = [("content-type", "application/yaml")];
    let (code, headers, _) = send(&client, "POST", SERVICES, &headers, body).await;
    assert_eq!(code, 201);
    let warning = &headers.iter().find(|(name, _)| name == "warning").unwrap().1;
    assert_eq!(warning, "299 - \"unknown field \\\"spec.colour\\\"\"");
    let body =
        r#"{"metadata": {"name": "two", "name": "three"}, "spec": {"ports": [{"port": 1}]}}"#;
    let path = format!("{SERVICES}?fieldValidation=Strict");
    let (code, _, body) = send(&client, "POST", &path, &[], body).await;
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(code, 400);
    assert_eq!(
        status["message"],
        "Service in version \"v1\" cannot be handled as a Service: strict decoding error: \
         duplicate field \"metadata.name\""
    );
}

#[tokio::test]
async fn a_generated_name_and_a_dry_run() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let body = json!({"metadata": {"generateName": "web-"}, "spec": {"ports": [{"port": 80}]}});
    let path = format!("{SERVICES}?dryRun=All");
    let (code, _, dry) = send(&client, "POST", &path, &[], &body.to_string()).await;
    assert_eq!(code, 201);
    let dry: Value = serde_json::from_slice(&dry).unwrap();
    assert!(dry["metadata"]["name"].as_str().unwrap().starts_with("web-"));
    assert!(dry["spec"]["clusterIP"].is_string());
    let (_, list) = get(&client, SERVICES, "application/json").await;
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn a_deleted_collection_releases_its_ports() {
    let server = TestServer::start().await;
    let client = server.client().await;
    let body = json!({"metadata": {"name": "web", "labels": {"a": "b"}},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}})
    .to_string();
    for _ in 0..2 {
        let (code, _, answer) = send(&client, "POST", SERVICES, &[], &body).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&answer));
        let path = format!("{SERVICES}?labelSelector=a%3Db");
        let (code, _, _) = send(&client, "DELETE", &path, &[], "").await;
        assert_eq!(code, 200);
    }
}
