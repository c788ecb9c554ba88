//! The server over HTTP: what it responds to each request.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::world::{Dialect, Request, Shared, Watch, name};

pub(super) async fn serve(
    shared: &Arc<Shared>,
    address: SocketAddr,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(Arc::clone(shared));
    let serving = tokio::spawn(async move {
        // Dropped with this task, and all connections with it.
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let service = TowerToHyperService::new(router.clone());
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            connections.spawn(async { drop(connection.await) });
        }
    });
    (address, serving)
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let watch = query.get("watch").is_some_and(|watch| watch == "true");
    let authorization = headers.get("authorization").map(|value| value.to_str().unwrap());
    let authorization = authorization.unwrap_or_default().to_owned();
    let response = match method {
        Method::POST if path.starts_with("/apis/metallb.io/") => {
            create_object(&shared, &path, &body)
        }
        Method::POST => create_event(&shared, &path, &body),
        Method::PATCH if path.ends_with("/status") => patch_status(&shared, &path, &body),
        Method::PATCH if path.starts_with("/api/v1/nodes/") => patch_node(&shared, &path, &body),
        Method::PATCH => raise_event(&shared, &path, &body),
        // Of nothing.
        Method::DELETE => axum::Json(json!({"kind": "List", "items": []})).into_response(),
        _ => respond(&shared, &path, watch, query.clone(), &authorization),
    };
    let status = response.status().as_u16();
    let request = Request { method, path, watch, query, status, at: Instant::now() };
    shared.world().requests.push(request);
    shared.note_change();
    response
}

fn create_event(shared: &Shared, path: &str, body: &[u8]) -> Response {
    let event: Value = serde_json::from_slice(body).unwrap();
    let namespace = event["metadata"]["namespace"].as_str().unwrap();
    assert_eq!(path, format!("/api/v1/namespaces/{namespace}/events"));
    let mut world = shared.world();
    let name = name(&event);
    if world.events.contains_key(&name) {
        world.turned_away += 1;
        return refusal(409).into_response();
    }
    world.events.insert(name, event.clone());
    (StatusCode::CREATED, axum::Json(event)).into_response()
}

/// Applies a JSON patch to fields of an Event, as the agent sends it.
fn raise_event(shared: &Shared, path: &str, body: &[u8]) -> Response {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "api", "v1", "namespaces", namespace, "events", name] = parts[..] else {
        panic!("{path} is no Event");
    };
    let mut world = shared.world();
    let Some(event) = world.events.get_mut(&format!("{namespace}/{name}")) else {
        return refusal(404).into_response();
    };
    let operations: Vec<Value> = serde_json::from_slice(body).unwrap();
    for operation in operations {
        let field = operation["path"].as_str().unwrap().trim_start_matches('/');
        match operation["op"].as_str().unwrap() {
            "test" if event[field] != operation["value"] => return refusal(422).into_response(),
            "test" => {}
            "add" => event[field] = operation["value"].clone(),
            other => panic!("{other} is not known here"),
        }
    }
    axum::Json(event.clone()).into_response()
}

/// Applies a JSON patch to a Node.
fn patch_node(shared: &Shared, path: &str, body: &[u8]) -> Response {
    let mut world = shared.world();
    if let Some(&refused) = world.refused.get(path) {
        return refusal(refused).into_response();
    }
    let (nodes, name) = path.rsplit_once('/').unwrap();
    let key = (nodes.to_owned(), name.to_owned());
    let Some(before) = world.objects.get(&key).cloned() else {
        return refusal(404).into_response();
    };
    let mut object = before.clone();
    let operations: json_patch::Patch = serde_json::from_slice(body).unwrap();
    if json_patch::patch(&mut object, &operations).is_err() {
        return refusal(422).into_response();
    }
    world.version += 1;
    object["metadata"]["resourceVersion"] = world.version.to_string().into();
    world.objects.insert(key, object.clone());
    world.record(nodes, Some(before), Some(object.clone()));
    drop(world);
    shared.note_change();
    axum::Json(object).into_response()
}

/// Creates an object that has a namespace.
fn create_object(shared: &Shared, path: &str, body: &[u8]) -> Response {
    let mut world = shared.world();
    if let Some(&refused) = world.refused.get(&format!("POST {path}")) {
        return refusal(refused).into_response();
    }
    let object: Value = serde_json::from_slice(body).unwrap();
    let (group, rest) = path.split_once("/namespaces/").unwrap();
    let resource = rest.split_once('/').unwrap().1;
    let key = (format!("{group}/{resource}"), name(&object));
    if world.objects.contains_key(&key) {
        return refusal(409).into_response();
    }
    world.objects.insert(key, object.clone());
    (StatusCode::CREATED, axum::Json(object)).into_response()
}

/// Merges into the status of an object that has a namespace, unless it has changed.
fn patch_status(shared: &Shared, path: &str, body: &[u8]) -> Response {
    let parts: Vec<&str> = path.trim_end_matches("/status").split('/').collect();
    let [group @ .., "namespaces", namespace, resource, name] = &parts[..] else {
        return refusal(404).into_response();
    };
    let key = (format!("{}/{resource}", group.join("/")), format!("{namespace}/{name}"));
    let patch: Value = serde_json::from_slice(body).unwrap();
    let mut world = shared.world();
    if let Some(&refused) = world.refused.get(path) {
        return refusal(refused).into_response();
    }
    let Some(before) = world.objects.get(&key).cloned() else {
        return refusal(404).into_response();
    };
    let mut metadata = patch["metadata"].as_object().into_iter().flatten();
    if metadata.any(|(field, value)| before["metadata"][field] != *value) {
        return refusal(409).into_response();
    }
    let mut object = before.clone();
    for (field, value) in patch["status"].as_object().into_iter().flatten() {
        object["status"][field] = value.clone();
    }
    world.version += 1;
    object["metadata"]["resourceVersion"] = world.version.to_string().into();
    world.objects.insert(key.clone(), object.clone());
    world.record(&key.0, Some(before), Some(object.clone()));
    drop(world);
    shared.note_change();
    axum::Json(object).into_response()
}

fn respond(
    shared: &Arc<Shared>,
    path: &str,
    watch: bool,
    query: HashMap<String, String>,
    authorization: &str,
) -> Response {
    let mut world = shared.world();
    if world.token.as_ref().is_some_and(|token| token != authorization) {
        return refusal(401).into_response();
    }
    if let Some(scripted) = world.scripted.get_mut(path).and_then(VecDeque::pop_front) {
        let code = StatusCode::from_u16(scripted.status).unwrap();
        let mut response = (code, scripted.body).into_response();
        if let Some(seconds) = scripted.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        return response;
    }
    if let Some(&refused) = world.refused.get(path) {
        return refusal(refused).into_response();
    }
    let streams = query.contains_key("sendInitialEvents");
    let has_rule = query.contains_key("resourceVersionMatch");
    if streams && world.dialect == Dialect::Lists || has_rule && world.dialect == Dialect::Pages {
        return refusal(422).into_response();
    }
    if let (true, Dialect::Refuses(status)) = (streams, world.dialect) {
        return refusal(status).into_response();
    }
    let version = query.get("resourceVersion").map_or(0, |version| version.parse().unwrap());
    if world.lags_at.is_some_and(|lags_at| version >= lags_at) {
        return too_new().into_response();
    }
    if !watch {
        return match world.list(path, &query) {
            Some(list) => axum::Json(list).into_response(),
            None => refusal(410).into_response(),
        };
    }
    assert!(query.contains_key("resourceVersion"), "a watch begins at a version");
    if version < world.oldest && !streams {
        let (status, axum::Json(object)) = refusal(410);
        return if world.gone_as_event {
            lines(&[json!({"type": "ERROR", "object": object})]).into_response()
        } else {
            (status, axum::Json(object)).into_response()
        };
    }
    let watch = Watch {
        wants_all: streams,
        path: path.to_owned(),
        query,
        version,
        bookmark: world.bookmark,
        generation: world.generation,
        injected: world.injected.len(),
    };
    drop(world);
    stream(Arc::clone(shared), watch)
}

fn refusal(status: u16) -> (StatusCode, axum::Json<Value>) {
    let code = StatusCode::from_u16(status).unwrap();
    let reason = code.canonical_reason().unwrap().replace(' ', "");
    let object = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status,
        "reason": reason, "message": format!("the test refuses: {reason}")
    });
    (code, axum::Json(object))
}

fn too_new() -> (StatusCode, axum::Json<Value>) {
    let (_, axum::Json(mut object)) = refusal(504);
    object["reason"] = "Timeout".into();
    object["message"] = "Too large resource version: 9, current: 1".into();
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large"});
    object["details"] = json!({"causes": [cause], "retryAfterSeconds": 1});
    (StatusCode::GATEWAY_TIMEOUT, axum::Json(object))
}

fn stream(shared: Arc<Shared>, watch: Watch) -> Response {
    let changed = shared.changed.subscribe();
    let events = futures::stream::unfold((shared, watch, changed), async |state| {
        let (shared, mut watch, mut changed) = state;
        loop {
            let lines = {
                let mut world = shared.world();
                if world.generation != watch.generation {
                    return None;
                }
                let mut lines = lines(&world.events(&mut watch));
                let injected = world.injected.get(watch.injected..).unwrap_or_default();
                let here = injected.iter().filter(|(path, _)| *path == watch.path);
                lines.extend(here.map(|(_, line)| format!("{line}\n")));
                watch.injected = world.injected.len();
                lines
            };
            if !lines.is_empty() {
                shared.note_change();
                return Some((Ok::<_, Infallible>(lines), (shared, watch, changed)));
            }
            changed.changed().await.ok()?;
        }
    });
    Body::from_stream(events).into_response()
}

fn lines(events: &[Value]) -> String {
    events.iter().map(|event| format!("{event}\n")).collect()
}
