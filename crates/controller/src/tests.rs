//! What many Services cost, and what must not wait for them.

use std::convert::Infallible;
use std::future::pending;

use axum::http::{Request, Response};
use kube::client::Body;
use lb_process::notices::Log;
use serde_json::json;
use tokio::sync::oneshot;

use super::state::PATCHES;
use super::*;

fn state() -> State {
    let settings = Settings { is_alone: true, ..Settings::default() };
    let ranges = vec![Range::parse("10.0.0.0/16").unwrap()];
    State::new(settings, ranges, Arc::new(Log::default()), Metrics::default())
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

#[test]
fn the_work_for_all_statuses_is_proportional_to_their_number() {
    let patches = |services: usize| {
        let mut state = state();
        for number in 0..services {
            state.store(Event::Applied(service(&format!("s{number}"), "1", &json!({}))));
        }
        PATCHES.set(0);
        state.lead();
        let mut written = 0;
        let first = |state: &State| state.due().next().cloned();
        while let Some(name) = first(&state) {
            let patch = state.patch(&name, Timestamp::now()).unwrap();
            let stored = || service(&name.name, "2", &patch["status"]);
            let Object::Service(response) = stored() else { panic!() };
            state.written(&name, response);
            state.settle();
            // The watch reports it, too.
            state.store(Event::Applied(stored()));
            state.settle();
            written += 1;
        }
        assert_eq!(written, services);
        PATCHES.get()
    };
    assert_eq!(patches(200), 2 * patches(100));
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
    let lease = ServiceName::new("kube-system", "lease");
    let exposition = Exposition::new();
    let mut writes = JoinSet::new();
    for number in 0..WRITES {
        writes.spawn(async move { Written::Pool(number.to_string(), Ok(())) });
    }
    tokio::task::yield_now().await;
    let (_sender, events) = mpsc::unbounded_channel();
    let controller = Controller {
        lease: Some(Campaign::new(client.clone(), &lease, "a".to_owned())),
        client,
        state: state(),
        events,
        notices: Arc::new(Log::default()),
        metrics: exposition.metrics.clone(),
        writes,
        in_flight: BTreeSet::new(),
        backoff: Backoff::default(),
        retry_at: None,
        pools_at: None,
        pools_written: None,
        is_synced: true,
        tunnel_key_secret: None,
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
