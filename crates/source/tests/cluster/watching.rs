//! Lists and watches of objects: what is requested again after watches, versions or the server are gone.

use std::time::{Duration, Instant};

use lb_source::Cluster;
use lb_waits::{LONG_WAIT, Resource, Waits};
use serde_json::json;

use super::server::{self, Dialect, NODES, SERVICES, SLICES, Server};
use super::{Reported, SOON, client, lists, node, service, slice, watches, with_services};

#[tokio::test]
async fn everything_is_listed_and_then_watched_whatever_the_server_knows() {
    let names: Vec<String> = (0..1_100).map(|number| format!("service-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Requests for all Services until the first watch.
    for (dialect, asked) in [
        (Dialect::Streams, 1),
        (Dialect::Lists, 2),
        (Dialect::Unmarked, 2),
        (Dialect::Pages, 2 + 3),
    ] {
        let server = with_services(&names).await;
        server.speak(dialect);
        server.put(SLICES, slice("web-1"));

        let mut reported = Reported::synced(&server).await;
        assert_eq!(reported.there.len(), 1_100 + 2, "{dialect:?}");
        assert_eq!(lists(&server.requests(), SERVICES), asked, "{dialect:?}");
        assert!(reported.deleted.is_empty());

        server.put(SERVICES, service("new"));
        server.remove(SERVICES, "default/service-7");
        reported
            .until(|reported| {
                reported.is_there("Service default/new") && !reported.deleted.is_empty()
            })
            .await;
        assert_eq!(reported.deleted, ["Service default/service-7"]);
        assert_eq!(lists(&server.requests(), SERVICES), asked, "a change is no reason to list");
    }
}

/// As with an etcd that does not report its progress: every stream fails, and other requests work.
#[tokio::test]
async fn a_server_whose_streams_always_fail_is_listed_and_watched() {
    for status in [403, 429, 500, 503, 504] {
        let server = with_services(&["web"]).await;
        server.speak(Dialect::Refuses(status));
        let mut reported = Reported::synced(&server).await;
        server.put(SERVICES, service("later"));
        reported.until(|reported| reported.is_there("Service default/later")).await;
        assert_eq!(lists(&server.requests(), SERVICES), 2, "{status}: one stream, one list");
    }
}

/// A server that never says that a list is complete, and is never silent, either.
#[tokio::test]
async fn a_stream_that_changes_all_the_time_and_has_no_end_is_given_up() {
    let server = std::sync::Arc::new(with_services(&["web"]).await);
    server.speak(Dialect::Endless);
    let cluster = Cluster::new(client(&server), "node-a");
    let mut reported = Reported::of(cluster.with_longest_stream(Duration::from_millis(300)));
    let busy = std::sync::Arc::clone(&server);
    let changes = tokio::spawn(async move {
        loop {
            for path in [SERVICES, SLICES, NODES] {
                let object = json!({"metadata": {"name": "x", "resourceVersion": "1"}});
                busy.inject(path, &json!({"type": "DELETED", "object": object}).to_string());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    reported.until(|reported| reported.extent.is_some()).await;
    changes.abort();
}

#[tokio::test]
async fn what_is_waited_for_is_known_with_its_reason() {
    let server = with_services(&["web"]).await;
    server.refuse(SLICES, 403);
    let waits = Waits::default();
    let cluster = Cluster::new(client(&server), "node-a").with_waits(waits.clone());
    let mut reported = Reported::of(cluster);
    let soon = || waits.long(Instant::now() + LONG_WAIT);
    let of = |kind: &str| soon().into_iter().find(|wait| wait.subject.contains(kind));
    let denied = || of("EndpointSlice").filter(|wait| !wait.reason.is_empty());
    until(|| denied().is_some()).await;
    let wait = denied().unwrap();
    assert_eq!(wait.resource, Resource::Permission);
    assert_eq!(wait.subject, "list of EndpointSlice objects");
    assert!(wait.reason.contains("ClusterRole"), "{wait}");

    server.refuse(SLICES, 200);
    reported.until(|reported| reported.synced == 1).await;
    assert_eq!(of("EndpointSlice"), None);

    // A watch that was accepted is waited for again when the server is gone.
    server.refuse(SLICES, 503);
    server.hang_up();
    until(|| of("EndpointSlice").is_some()).await;
    assert_eq!(of("EndpointSlice").unwrap().subject, "watch of EndpointSlice objects");
    server.refuse(SLICES, 200);
    until(|| soon().is_empty()).await;
}

/// Of what is not a request, so that no request tells when it changes.
async fn until(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, reached).await.expect("a condition of the cluster's waits");
}

#[tokio::test]
async fn first_lists_are_of_any_version_and_later_ones_not_older_than_what_was_reported() {
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = with_services(&["web"]).await;
        server.speak(dialect);
        let mut reported = Reported::synced(&server).await;
        server.put(SERVICES, service("later"));
        reported.until(|reported| reported.is_there("Service default/later")).await;
        let reported = server.version();
        server.put(NODES, node("node-b"));
        server.forget();
        server.hang_up();
        let listed = |requests: &[server::Request]| {
            let lists = requests.iter().filter(|r| r.path == SERVICES && r.is_list());
            lists.filter(|r| r.status == 200).cloned().collect::<Vec<_>>()
        };
        server.asked(|requests| listed(requests).len() == 2).await;
        let lists = listed(&server.requests());
        assert_eq!(lists[0].version(), Some("0"), "{dialect:?}");
        assert_eq!(lists[1].version(), Some(reported.as_str()), "{dialect:?}");
        for list in lists {
            assert_eq!(list.query["resourceVersionMatch"], "NotOlderThan", "{dialect:?}");
            assert!(!list.query.contains_key("limit"), "a limit makes the server read its storage");
        }
    }
}

#[tokio::test]
async fn a_server_restored_from_a_backup_is_asked_for_its_latest_state() {
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = with_services(&["web", "gone"]).await;
        server.speak(dialect);
        let mut reported = Reported::synced(&server).await;
        server.asked(|r| watches(r, SERVICES) == 1).await;
        server.remove(SERVICES, "default/gone");
        reported.until(|reported| !reported.deleted.is_empty()).await;
        server.put(SERVICES, service("gone"));
        reported.until(|reported| reported.is_there("Service default/gone")).await;
        server.refuse(SERVICES, 503);
        server.hang_up();
        server.remove(SERVICES, "default/gone");
        server.go_back();
        server.refuse(SERVICES, 200);
        reported.until(|reported| !reported.is_there("Service default/gone")).await;
        assert!(reported.is_there("Service default/web"));
    }
}

#[tokio::test]
async fn synced_is_reported_when_every_kind_has_been_listed() {
    let server = with_services(&["web"]).await;
    server.refuse(SLICES, 500);
    let mut reported = Reported::watching(&server);
    // All other objects are there, and the slices are requested again.
    server
        .asked(|r| lists(r, SLICES) > 1 && watches(r, SERVICES) > 0 && watches(r, NODES) > 0)
        .await;
    reported.until(|reported| reported.there.len() == 2).await;
    assert_eq!(reported.so_far().synced, 0);

    server.put(SLICES, slice("web-1"));
    server.refuse(SLICES, 200);
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there("EndpointSlice default/web-1"));
}

#[tokio::test]
async fn a_watch_that_is_hung_up_goes_on_where_it_was() {
    let server = with_services(&["web"]).await;
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1).await;
    server.refuse(SERVICES, 503);
    server.hang_up();
    server.put(SERVICES, service("meanwhile"));
    server.remove(SERVICES, "default/web");
    server.refuse(SERVICES, 200);
    reported
        .until(|reported| {
            reported.is_there("Service default/meanwhile")
                && !reported.is_there("Service default/web")
        })
        .await;
    assert_eq!(lists(&server.requests(), SERVICES), 1);
}

#[tokio::test]
async fn a_bookmark_keeps_a_quiet_watch_within_the_window() {
    let server = with_services(&["web"]).await;
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1).await;
    // Slices change all the time, Services never.
    server.put(SLICES, slice("web-1"));
    server.bookmark(SERVICES).await;
    server.forget();
    server.hang_up();
    server.put(SERVICES, service("later"));
    reported.until(|reported| reported.is_there("Service default/later")).await;
    assert_eq!(lists(&server.requests(), SERVICES), 1, "{:?}", server.requests());
}

async fn forgets(server: Server) {
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1).await;
    reported.applied.clear();
    server.refuse(SERVICES, 503);
    server.hang_up();
    server.remove(SERVICES, "default/gone");
    server.put(SERVICES, service("meanwhile"));
    server.forget();
    server.refuse(SERVICES, 200);
    reported.until(|reported| !reported.deleted.is_empty()).await;
    assert_eq!(reported.deleted, ["Service default/gone"]);
    assert_eq!(
        reported.applied,
        ["Service default/meanwhile"],
        "what is as it was is not reported again"
    );
    assert_eq!(reported.so_far().synced, 1);
    server.put(SERVICES, service("later"));
    reported.until(|reported| reported.is_there("Service default/later")).await;
}

#[tokio::test]
async fn after_410_gone_the_difference_is_reported() {
    forgets(with_services(&["web", "gone"]).await).await;
}

#[tokio::test]
async fn a_410_within_the_stream_is_the_same() {
    let server = with_services(&["web", "gone"]).await;
    server.say_gone_as_event();
    forgets(server).await;
}

#[tokio::test]
async fn a_list_that_can_not_be_continued_is_begun_anew() {
    let names: Vec<String> = (0..600).map(|number| format!("service-{number}")).collect();
    let server = with_services(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    server.speak(Dialect::Pages);
    server.forget_next_page();
    let reported = Reported::synced(&server).await;
    assert_eq!(reported.there.len(), 601);
    assert_eq!(lists(&server.requests(), SERVICES), 2 + 4, "two pages, twice");
    assert!(reported.deleted.is_empty());
}

#[tokio::test]
async fn a_server_that_goes_away_takes_nothing_along() {
    let mut server = with_services(&["web", "gone"]).await;
    let mut reported = Reported::synced(&server).await;
    server.asked(|r| watches(r, SERVICES) == 1 && watches(r, NODES) == 1).await;
    server.go_away().await;
    server.remove(SERVICES, "default/gone");
    server.put(SERVICES, service("meanwhile"));
    // A restored server may have no history.
    server.forget();
    assert!(reported.so_far().deleted.is_empty());
    server.come_back().await;
    reported
        .until(|reported| {
            !reported.deleted.is_empty() && reported.is_there("Service default/meanwhile")
        })
        .await;
    assert_eq!(reported.deleted, ["Service default/gone"]);
    assert!(reported.is_there("Service default/web"));
}

#[tokio::test]
async fn a_server_that_is_not_there_at_the_start_is_waited_for() {
    let mut server = with_services(&["web"]).await;
    server.go_away().await;
    let mut reported = Reported::watching(&server);
    assert_eq!(reported.so_far().synced, 0);
    server.come_back().await;
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there("Service default/web"));
}

#[tokio::test]
async fn an_object_that_can_not_be_read_keeps_only_itself_out() {
    let server = with_services(&["web"]).await;
    let mut wrong = service("wrong");
    wrong["spec"]["ports"] = json!([{"port": "http"}]);
    server.put(SERVICES, wrong.clone());
    let mut reported = Reported::synced(&server).await;
    assert!(reported.is_there("Service default/web"));
    assert!(reported.problems[0].contains("Service default/wrong: spec.ports[0].port"));

    wrong["metadata"]["name"] = "web".into();
    server.put(SERVICES, wrong);
    reported.until(|reported| reported.problems.len() == 2).await;
    assert!(reported.is_there("Service default/web"), "what it was before stays true");
}

#[tokio::test]
async fn services_of_other_proxies_are_not_sent() {
    let server = with_services(&["web"]).await;
    let mut headless = service("headless");
    headless["metadata"]["labels"] = json!({"service.kubernetes.io/headless": ""});
    server.put(SERVICES, headless);
    let mut reported = Reported::synced(&server).await;
    assert!(!reported.is_there("Service default/headless"));

    let mut others = service("web");
    others["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    server.put(SERVICES, others);
    reported.until(|reported| !reported.is_there("Service default/web")).await;
    server.put(SERVICES, service("web"));
    reported.until(|reported| reported.is_there("Service default/web")).await;
}
