//! What many Services cost, and what must not wait for them.

use std::convert::Infallible;
use std::future::pending;

use axum::http::{Request, Response};
use kube::client::Body;
use lb_process::notices::NoticeLog;
use lb_rules::ipam::{IpamSettings, Range};
use lb_rules::model::ObjectRef;
use lb_source::Extent;
use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::state::PATCHES;

fn state() -> AssignmentState {
    state_with("10.0.0.0/16")
}

fn state_with(range: &str) -> AssignmentState {
    let settings = IpamSettings { is_alone: true, ..IpamSettings::default() };
    let ranges = vec![Range::parse(range).unwrap()];
    AssignmentState::new(
        settings,
        ranges,
        Arc::new(NoticeLog::default()),
        AssignmentMetrics::default(),
    )
}

fn service(name: &str, version: &str, status: &Value) -> Object {
    let service = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "resourceVersion": version
        },
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}, "status": status
    });
    Object::read(Kind::Service, service).unwrap()
}

/// A candidate for a Lease.
fn controller(
    client: Client,
    state: AssignmentState,
    events: mpsc::UnboundedReceiver<Event>,
) -> Controller {
    let lease = ServiceName::new("kube-system", "lease");
    Controller {
        lease: Some(Campaign::new(client.clone(), &lease, "a".to_owned())),
        client,
        state,
        events,
        notices: Arc::new(NoticeLog::default()),
        metrics: AssignmentMetrics::default(),
        handover: JoinSet::new(),
        is_handed_over: false,
        writes: JoinSet::new(),
        in_flight: BTreeSet::new(),
        written: BTreeMap::new(),
        backoff: Backoff::default(),
        retry_at: None,
        pools_at: None,
        pools_written: None,
        is_synced: false,
        unread_kinds: JoinSet::new(),
        metallb_namespace: String::new(),
        tunnel_key_secret: None,
    }
}

/// Nodes and endpoints that a process has read before it leads count, too; and a change of a node is due at once.
#[test]
fn addresses_of_nodes_follow_nodes_and_endpoints() {
    let mut state = state();
    let pool = json!({
        "metadata": {"name": "edge"},
        "spec": {"priority": 1, "nodes": {"addressType": "InternalIP", "ports": [80]}}
    });
    let node = |name: &str, address: &str, ready: &str| {
        let node = json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": ready}]
        }});
        Event::Applied(Object::read(Kind::Node, node).unwrap())
    };
    let slice = |nodes: &[&str]| {
        let endpoint = |node| json!({"addresses": ["10.244.0.1"], "nodeName": node});
        let endpoints: Vec<Value> = nodes.iter().map(endpoint).collect();
        let labels = json!({"kubernetes.io/service-name": "web"});
        let slice = json!({
            "metadata": {"name": "web-1", "namespace": "default", "labels": labels},
            "addressType": "IPv4", "endpoints": endpoints
        });
        Event::Applied(Object::read(Kind::EndpointSlice, slice).unwrap())
    };
    let web = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "web", "resourceVersion": "1"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "externalTrafficPolicy": "Local"}
    });
    state.store_event(Event::Applied(Object::read(Kind::AddressPool, pool).unwrap()));
    state.store_event(Event::Applied(Object::read(Kind::Service, web).unwrap()));
    state.store_event(node("a", "10.7.0.1", "True"));
    state.store_event(node("b", "10.7.0.2", "True"));
    state.store_event(slice(&["a"]));
    state.lead();
    let name = ServiceName::new("default", "web");
    let listed = |state: &mut AssignmentState| -> Vec<String> {
        state.assign_addresses();
        assert_eq!(state.due_services().next(), Some(&name));
        let patch = state.status_patch(&name, Timestamp::UNIX_EPOCH).unwrap();
        let points = patch["status"]["loadBalancer"]["ingress"].as_array().unwrap().iter();
        points.map(|point| point["ip"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&mut state), ["10.7.0.1"]);
    state.store_event(slice(&["a", "b"]));
    assert_eq!(listed(&mut state), ["10.7.0.1", "10.7.0.2"]);
    state.store_event(node("a", "10.7.0.1", "Unknown"));
    assert_eq!(listed(&mut state), ["10.7.0.2"]);
    // Another process leads for a while.
    state.follow();
    state.store_event(node("a", "10.7.0.1", "True"));
    state.store_event(slice(&["a"]));
    state.lead();
    assert_eq!(listed(&mut state), ["10.7.0.1"]);
    let reference = ObjectRef::new(Kind::EndpointSlice, Some("default"), Some("web-1"));
    state.store_event(Event::Deleted(reference));
    assert_eq!(listed(&mut state), [""; 0]);
}

#[test]
fn the_work_for_all_statuses_is_proportional_to_their_number() {
    let patches = |services: usize| {
        let mut state = state();
        for number in 0..services {
            state.store_event(Event::Applied(service(&format!("s{number}"), "1", &json!({}))));
        }
        PATCHES.set(0);
        state.lead();
        let mut written = 0;
        let first = |state: &AssignmentState| state.due_services().next().cloned();
        while let Some(name) = first(&state) {
            let patch = state.status_patch(&name, Timestamp::now()).unwrap();
            let stored = || service(&name.name, "2", &patch["status"]);
            let Object::Service(response) = stored() else { panic!() };
            state.note_written(&name, response);
            state.assign_addresses();
            // The watch reports it, too.
            state.store_event(Event::Applied(stored()));
            state.assign_addresses();
            written += 1;
        }
        assert_eq!(written, services);
        PATCHES.get()
    };
    assert_eq!(patches(200), 2 * patches(100));
}

#[test]
fn a_service_that_changes_all_the_time_starves_no_other() {
    let mut state = state();
    state.lead();
    let mut became_due = |name: &str, version: &str| {
        state.store_event(Event::Applied(service(name, version, &json!({}))));
        state.assign_addresses();
        let due: Vec<String> = state.due_services().map(|name| name.name.clone()).collect();
        due
    };
    became_due("m", "1");
    became_due("z", "1");
    assert_eq!(became_due("a", "1"), ["m", "z", "a"]);
    assert_eq!(became_due("m", "2"), ["m", "z", "a"]);
    let name = ServiceName::new("default", "m");
    state.postpone(name);
    state.resume();
    let due: Vec<&str> = state.due_services().map(|name| &*name.name).collect();
    assert_eq!(due, ["z", "a", "m"]);
}

#[tokio::test]
async fn the_lease_is_renewed_before_finished_writes_are_handled() {
    const WRITES: u32 = 1_000;
    let (asked, mut is_asked) = mpsc::unbounded_channel();
    let silent = tower::service_fn(move |_: Request<Body>| {
        let _ = asked.send(());
        pending::<Result<Response<Body>, Infallible>>()
    });
    let client = Client::new(silent, "default");
    let exposition = ControllerRegistry::new();
    let mut writes = JoinSet::new();
    for number in 0..WRITES {
        writes.spawn(async move { FinishedWrite::Pool(number.to_string(), Ok(())) });
    }
    tokio::task::yield_now().await;
    let (_sender, events) = mpsc::unbounded_channel();
    let controller = Controller {
        writes,
        is_synced: true,
        metrics: exposition.metrics.clone(),
        ..controller(client, state(), events)
    };
    let (_stop, stopped) = oneshot::channel();
    tokio::spawn(controller.run(stopped, None));
    is_asked.recv().await.unwrap();
    let metrics = exposition.encode();
    let handled = "millrace_address_status_writes_total{result=\"ok\"} ";
    let handled = metrics.lines().find_map(|line| line.strip_prefix(handled));
    // The first look at a clock is when the task yields for the first time.
    assert!(handled.unwrap().parse::<u32>().unwrap() < WRITES / 2, "{handled:?}");
}

/// The watch of a new leader may be behind what the last one has written.
#[tokio::test]
async fn a_new_leader_does_not_assign_what_the_last_one_has_just_assigned() {
    let json_of = |object: Object| match object {
        Object::Service(service) => serde_json::to_value(service).unwrap(),
        _ => panic!(),
    };
    let before = service("first", "1", &json!({}));
    let assigned = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
    let after = json_of(service("first", "5", &assigned));
    let (patched, mut patches) = mpsc::unbounded_channel();
    let server = tower::service_fn(move |request: Request<Body>| {
        let (patched, after) = (patched.clone(), after.clone());
        async move {
            let (parts, body) = request.into_parts();
            let sent = body.collect_bytes().await.unwrap();
            let path = parts.uri.path().to_owned();
            let (status, reply) = match (parts.method.as_str(), path.as_str()) {
                ("GET", "/api/v1/services") => {
                    let metadata = json!({"resourceVersion": "9"});
                    (200, json!({"metadata": metadata, "items": [after]}).to_string())
                }
                ("PATCH", _) => {
                    let patch: Value = serde_json::from_slice(&sent).unwrap();
                    let address = patch["status"]["loadBalancer"]["ingress"][0]["ip"].clone();
                    patched.send((path, address)).unwrap();
                    (409, json!({"code": 409, "reason": "Conflict"}).to_string())
                }
                ("GET", _) => (404, json!({"code": 404, "reason": "NotFound"}).to_string()),
                _ => (201, String::from_utf8(sent.to_vec()).unwrap()),
            };
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(response.body(Body::from(reply.into_bytes())).unwrap())
        }
    });
    let (sender, events) = mpsc::unbounded_channel();
    for object in [before, service("a-new-one", "7", &json!({}))] {
        sender.send(Event::Applied(object)).unwrap();
    }
    sender.send(Event::Synced(Extent::All)).unwrap();
    let client = Client::new(server, "default");
    let controller = controller(client, state_with("10.0.0.1-10.0.0.9"), events);
    let (_stop, stopped) = oneshot::channel();
    tokio::spawn(controller.run(stopped, None));
    loop {
        let (path, address): (String, Value) = patches.recv().await.unwrap();
        if path == "/api/v1/namespaces/default/services/a-new-one/status" {
            assert_eq!(address, "10.0.0.2");
            break;
        }
    }
}
