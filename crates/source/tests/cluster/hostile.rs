//! Servers, or proxies in front of them, with responses that violate the API.

use std::time::Duration;

use serde_json::json;

use super::server::{Dialect, SERVICES, Scripted};
use super::{Reported, lists, service, watches, with_services};

const PAGE: &str = "<html>\n<head><title>Sign in</title></head>\n</html>\n";

fn scripted(status: u16, body: &str) -> Scripted {
    Scripted { status, retry_after: None, body: body.to_owned() }
}

fn added(name: &str) -> String {
    let mut object = service(name);
    object["metadata"]["resourceVersion"] = "1".into();
    json!({"type": "ADDED", "object": object}).to_string()
}

#[tokio::test]
async fn a_stream_that_ends_within_an_object_is_read_again_as_a_list() {
    let server = with_services(&["web", "other"]).await;
    let cut = added("other");
    let body = format!("{}\n{}", added("web"), &cut[..cut.len() / 2]);
    server.answer_next(SERVICES, scripted(200, &body));
    let mut reported = Reported::synced(&server).await;
    assert!(reported.is_there("Service default/web") && reported.is_there("Service default/other"));
    assert!(reported.problems.is_empty() && reported.deleted.is_empty());
    let requests = server.requests();
    let first: Vec<bool> =
        requests.iter().filter(|r| r.path == SERVICES).take(2).map(|r| r.watch).collect();
    assert_eq!(first, [true, false]);
    // The next list is a stream again.
    server.asked(|r| watches(r, SERVICES) == 2).await;
    server.refuse(SERVICES, 503);
    server.hang_up();
    server.put(SERVICES, service("later"));
    server.forget();
    server.refuse(SERVICES, 200);
    reported.until(|reported| reported.is_there("Service default/later")).await;
    let list = server
        .requests()
        .into_iter()
        .rfind(|r| r.path == SERVICES && r.is_list() && r.status == 200);
    let list = list.unwrap();
    assert!(list.watch, "{list:?}");
}

#[tokio::test]
async fn a_watch_that_ends_within_an_object_continues_before_it() {
    let server = with_services(&["web"]).await;
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1).await;
    let cut = added("broken");
    server.answer_next(SERVICES, scripted(200, &cut[..cut.len() / 2]));
    server.hang_up();
    server.put(SERVICES, service("later"));
    reported.until(|reported| reported.is_there("Service default/later")).await;
    assert!(reported.problems.is_empty() && !reported.is_there("Service default/broken"));
    assert_eq!(lists(&server.requests(), SERVICES), 1);
}

#[tokio::test]
async fn pages_instead_of_objects_remove_nothing() {
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = with_services(&["web"]).await;
        server.speak(dialect);
        for status in [200, 302] {
            server.answer_next(SERVICES, scripted(status, PAGE));
        }
        let mut reported = Reported::synced(&server).await;
        assert!(reported.is_there("Service default/web"));
        server.asked(|r| watches(r, SERVICES) >= 1).await;
        server.answer_next(SERVICES, scripted(502, PAGE));
        server.hang_up();
        server.put(SERVICES, service("later"));
        reported.until(|reported| reported.is_there("Service default/later")).await;
        assert!(reported.deleted.is_empty() && reported.problems.is_empty());
    }
}

#[tokio::test]
async fn an_overloaded_server_is_not_asked_before_its_retry_after() {
    let server = with_services(&["web"]).await;
    let retry_after = Some(2);
    let body = "Too many requests, please try again later.".to_owned();
    server.answer_next(SERVICES, Scripted { status: 429, retry_after, body });
    let reported = Reported::synced(&server).await;
    assert!(reported.is_there("Service default/web"));
    let requests = server.requests();
    let times: Vec<_> = requests.iter().filter(|r| r.path == SERVICES).map(|r| r.at).collect();
    assert!(times[1] - times[0] >= Duration::from_secs(2), "{:?}", times[1] - times[0]);
}

#[tokio::test]
async fn bookmarks_without_a_version_do_not_move_the_watch() {
    let server = with_services(&["web"]).await;
    let mut reported = Reported::synced(&server).await;
    server.put(SERVICES, service("marker"));
    reported.until(|reported| reported.is_there("Service default/marker")).await;
    let version = server.version();
    for metadata in [
        json!(null),
        json!({}),
        json!({"resourceVersion": ""}),
        json!({"resourceVersion": "0"}),
        json!({"resourceVersion": 7}),
    ] {
        let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata});
        server.inject(SERVICES, &json!({"type": "BOOKMARK", "object": object}).to_string());
    }
    server.inject(SERVICES, &added("last"));
    reported.until(|reported| reported.is_there("Service default/last")).await;
    server.hang_up();
    server.asked(|r| r.iter().filter(|r| r.path == SERVICES).count() == 2).await;
    let requests = server.requests();
    let again = requests.iter().rfind(|r| r.path == SERVICES).unwrap();
    // The version of the last object: bookmarks have none.
    assert_ne!(again.version(), Some(version.as_str()));
    assert_eq!(again.version(), Some("1"));
    assert!(!again.is_list());
}

#[tokio::test]
async fn the_end_of_a_list_needs_a_version() {
    let server = with_services(&["web"]).await;
    let end = json!({"type": "BOOKMARK", "object": {"metadata": {
        "resourceVersion": "", "annotations": {"k8s.io/initial-events-end": "true"}
    }}});
    server.answer_next(SERVICES, scripted(200, &format!("{}\n{end}\n", added("web"))));
    let list = json!({"kind": "ServiceList", "metadata": {"resourceVersion": ""}, "items": []});
    server.answer_next(SERVICES, scripted(200, &list.to_string()));
    let reported = Reported::synced(&server).await;
    assert!(reported.is_there("Service default/web"));
    assert!(reported.deleted.is_empty());
}

/// Takes as long as the source waits for the rest of the list.
#[tokio::test]
async fn a_stream_that_never_completes_its_list_is_abandoned() {
    let server = with_services(&["web"]).await;
    server.speak(Dialect::Endless);
    let reported = Reported::synced(&server).await;
    assert!(reported.is_there("Service default/web"));
    assert_eq!(lists(&server.requests(), SERVICES), 2);
}

#[tokio::test]
async fn an_invalid_event_ends_the_watch_and_removes_nothing() {
    let server = with_services(&["web"]).await;
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1).await;
    for (index, line) in [
        "[]",
        "\u{0}",
        PAGE,
        r#"{"type": "ERROR", "object": []}"#,
        r#"{"kind": "Status", "code": 500}"#,
    ]
    .into_iter()
    .enumerate()
    {
        server.inject(SERVICES, line);
        let name = format!("later-{index}");
        server.asked(|r| watches(r, SERVICES) == 2 + index).await;
        server.put(SERVICES, service(&name));
        reported.until(|reported| reported.is_there(&format!("Service default/{name}"))).await;
    }
    // A type of a newer API.
    server.inject(SERVICES, r#"{"type": "CHECKSUM", "object": {"value": 7}}"#);
    server.put(SERVICES, service("last"));
    reported.until(|reported| reported.is_there("Service default/last")).await;
    assert_eq!(watches(&server.requests(), SERVICES), 6);
    assert!(reported.deleted.is_empty() && reported.problems.is_empty());
}
