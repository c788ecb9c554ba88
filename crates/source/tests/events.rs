//! The agent's Events, on the embedded API.

// All of this is tests.
#![allow(clippy::unwrap_used)]

// Shared with the tests of the API, which use more of it.
#[allow(dead_code)]
#[path = "../../api/tests/api/server.rs"]
mod server;

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{Kind, ObjectRef};
use lb_source::cluster::Events;

use server::TestServer;

/// A long limit: the machine may be busy.
const SOON: Duration = Duration::from_secs(120);

fn notice(reason: NoticeReason, message: &str) -> Notice {
    let reference = ObjectRef::new(Kind::Service, Some("default"), Some("web"));
    let about = NoticeObject { reference, uid: "1234".to_owned() };
    Notice { about: Some(about), reason, message: message.to_owned() }
}

struct Case {
    client: kube::Client,
    _server: TestServer,
}

impl Case {
    async fn new() -> Self {
        let server = TestServer::start().await;
        Self { client: server.client().await, _server: server }
    }

    /// The Events of an agent on a node, which has just been started.
    fn agent(&self, node: &str) -> Events {
        Events::new(self.client.clone(), node)
    }

    fn events(&self) -> Api<Event> {
        Api::default_namespaced(self.client.clone())
    }

    /// Waits for these Events: type, message, first node, and count.
    async fn until(&self, expected: &[(&str, &str, &str, i32)]) {
        let mut found = Vec::new();
        let so = async {
            loop {
                found.clear();
                for event in self.events().list(&ListParams::default()).await.unwrap() {
                    let text = |text: Option<String>| text.unwrap_or_default();
                    let [kind, message] = [event.type_, event.message].map(text);
                    let instance = text(event.reporting_instance);
                    found.push((kind, message, instance, event.count.unwrap()));
                }
                found.sort();
                let found = found.iter().map(|(kind, message, instance, count)| {
                    (kind.as_str(), message.as_str(), instance.as_str(), *count)
                });
                if found.eq(expected.iter().copied()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(SOON, so).await.is_ok();
        assert!(in_time, "expected {expected:?}, there are {found:?}");
    }
}

#[tokio::test]
async fn a_repeated_problem_increments_the_count_of_its_event() {
    let case = Case::new().await;
    let agent = case.agent("a");
    agent.post(notice(NoticeReason::NotServed, "wrong"));
    case.until(&[("Warning", "wrong", "a", 1)]).await;
    let first = case.events().list(&ListParams::default()).await.unwrap().items.remove(0);
    for count in [2, 3] {
        agent.post(notice(NoticeReason::NotServed, "wrong"));
        case.until(&[("Warning", "wrong", "a", count)]).await;
    }
    let last = case.events().list(&ListParams::default()).await.unwrap().items.remove(0);
    assert_eq!(first.first_timestamp, last.first_timestamp);
    assert!(last.last_timestamp >= first.last_timestamp);

    agent.post(notice(NoticeReason::NotServed, "also wrong"));
    agent.post(notice(NoticeReason::Served, "fixed"));
    let all = [("Normal", "fixed", "a", 1), ("Warning", "also wrong", "a", 1)];
    case.until(&[all[0], all[1], ("Warning", "wrong", "a", 3)]).await;
}

#[tokio::test]
async fn the_creator_of_a_shared_event_counts_it() {
    let case = Case::new().await;
    let (a, b) = (case.agent("a"), case.agent("b"));
    a.post(notice(NoticeReason::NotServed, "wrong"));
    case.until(&[("Warning", "wrong", "a", 1)]).await;
    // A node's notices stay in order: with the second, the first has arrived.
    b.post(notice(NoticeReason::NotServed, "wrong"));
    b.post(notice(NoticeReason::NoRoom, "full"));
    let of_b = ("Warning", "full", "b", 1);
    case.until(&[of_b, ("Warning", "wrong", "a", 1)]).await;
    a.post(notice(NoticeReason::NotServed, "wrong"));
    case.until(&[of_b, ("Warning", "wrong", "a", 2)]).await;
    b.post(notice(NoticeReason::NotServed, "wrong"));
    b.post(notice(NoticeReason::NoRoom, "full"));
    case.until(&[("Warning", "full", "b", 2), ("Warning", "wrong", "a", 2)]).await;
}

#[tokio::test]
async fn counting_goes_on_after_a_restart_and_begins_anew_when_the_event_is_gone() {
    let case = Case::new().await;
    case.agent("a").post(notice(NoticeReason::NotServed, "wrong"));
    case.until(&[("Warning", "wrong", "a", 1)]).await;
    let agent = case.agent("a");
    for count in [2, 3] {
        agent.post(notice(NoticeReason::NotServed, "wrong"));
        case.until(&[("Warning", "wrong", "a", count)]).await;
    }
    case.events()
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    agent.post(notice(NoticeReason::NotServed, "wrong"));
    case.until(&[("Warning", "wrong", "a", 1)]).await;
}

#[tokio::test]
async fn a_flood_is_counted_and_costs_one_write() {
    let case = Case::new().await;
    let agent = case.agent("a");
    // Nothing is sent until this test awaits.
    for _ in 0..200 {
        agent.post(notice(NoticeReason::NotServed, "wrong"));
    }
    agent.post(notice(NoticeReason::NotServed, "also wrong"));
    case.until(&[("Warning", "also wrong", "a", 1), ("Warning", "wrong", "a", 200)]).await;
    let [first, second] = ["wrong", "also wrong"].map(|message| {
        let message = message.to_owned();
        let events = case.events();
        async move {
            let all = events.list(&ListParams::default()).await.unwrap();
            let found = all.into_iter().find(|event| event.message.as_ref() == Some(&message));
            found.unwrap().metadata.resource_version.unwrap().parse::<u64>().unwrap()
        }
    });
    assert_eq!(first.await + 1, second.await, "each was written once");
}
