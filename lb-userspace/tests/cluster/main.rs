//! The cluster source with an API server over real HTTP, which also closes watches, forgets
//! versions, refuses requests and stops.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod access;
mod controller;
mod hostile;
mod ingress;
mod load;
mod permissions;
mod pools;
mod server;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::{Client, Config};
use lb_common::layout::Forwarding;
use lb_userspace::model::{Kind, ObjectRef};
use lb_userspace::notices::{About, Notice, Notices, Reason};
use lb_userspace::source::cluster::Events;
use lb_userspace::source::{Cluster, Event, Source};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use server::{Dialect, NODES, SERVICES, SLICES, Server};

/// A long limit costs time only in failures. It is less than the minute after which a source gives
/// up a silent server, so that tests do not pass by that.
pub const SOON: Duration = Duration::from_secs(50);

/// The events of a source.
struct Reported {
    events: mpsc::UnboundedReceiver<Event>,
    /// All reported objects that exist, as `Kind namespace/name`.
    there: BTreeSet<String>,
    applied: Vec<String>,
    deleted: Vec<String>,
    problems: Vec<String>,
    synced: usize,
}

impl Reported {
    fn watching(server: &Server) -> Self {
        Self::of(Cluster::new(client(server), "node-a"))
    }

    fn of(cluster: impl Source + Send + 'static) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(cluster.run(sender));
        Self {
            events,
            there: BTreeSet::new(),
            applied: Vec::new(),
            deleted: Vec::new(),
            problems: Vec::new(),
            synced: 0,
        }
    }

    async fn synced(server: &Server) -> Self {
        let mut reported = Self::watching(server);
        reported.until(|reported| reported.synced == 1).await;
        reported
    }

    /// Receives events until the condition holds.
    async fn until(&mut self, such: impl Fn(&Self) -> bool) {
        while !such(self) {
            let event = timeout(SOON, self.events.recv()).await;
            let event = event.unwrap_or_else(|_| panic!("reported only {:?}", self.there));
            self.take(event.expect("a source never ends"));
        }
    }

    /// Receives the events so far.
    fn so_far(&mut self) -> &Self {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        self
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Applied(object) => {
                let name = object.reference().to_string();
                self.there.insert(name.clone());
                self.applied.push(name);
            }
            Event::Deleted(reference) => {
                assert!(self.there.remove(&reference.to_string()), "{reference} was not there");
                self.deleted.push(reference.to_string());
            }
            Event::Problem(problem) => self.problems.push(problem.to_string()),
            Event::Synced => self.synced += 1,
            Event::Together(events) => events.into_iter().for_each(|event| self.take(event)),
        }
    }

    fn is_there(&self, name: &str) -> bool {
        self.there.contains(name)
    }
}

fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address()).parse().unwrap();
    // The source has its own retries.
    let mut config = Config::new(url);
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {}})
}

fn slice(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "addressType": "IPv4", "endpoints": []
    })
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name}})
}

async fn with_services(names: &[&str]) -> Server {
    let server = Server::start().await;
    server.put(NODES, node("node-a"));
    for name in names {
        server.put(SERVICES, service(name));
    }
    server
}

fn lists(requests: &[server::Request], path: &str) -> usize {
    requests.iter().filter(|request| request.path == path && request.is_list()).count()
}

fn watches(requests: &[server::Request], path: &str) -> usize {
    let watched = |r: &&server::Request| r.path == path && r.watch && r.status == 200;
    requests.iter().filter(watched).count()
}

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
async fn after_410_gone_the_difference_is_told() {
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

const NODE_A: &str = "Node node-a";
const NODE_B: &str = "Node node-b";

#[tokio::test]
async fn only_the_own_node_is_watched() {
    let server = with_services(&["web"]).await;
    server.put(NODES, node("node-b"));
    let mut reported = Reported::synced(&server).await;
    assert!(reported.is_there(NODE_A) && !reported.is_there(NODE_B));
    assert!(reported.problems.is_empty());
    server.put(NODES, node("node-b"));
    server.remove(NODES, "node-a");
    reported.until(|reported| !reported.is_there(NODE_A)).await;
    assert_eq!(reported.deleted, [NODE_A]);
    assert!(!reported.applied.iter().any(|name| name == NODE_B));
    let nodes = server.requests().into_iter().filter(|request| request.path == NODES);
    let selectors: BTreeSet<String> = nodes.map(|r| r.query["fieldSelector"].clone()).collect();
    assert_eq!(selectors, BTreeSet::from(["metadata.name=node-a".to_owned()]));
}

fn tunnelled(name: &str) -> Value {
    let mut service = service(name);
    service["metadata"]["annotations"] = json!({"millrace.io/forwarding": "gue"});
    service
}

#[tokio::test]
async fn all_nodes_are_there_before_synced_if_a_service_has_tunnels() {
    let server = with_services(&[]).await;
    server.put(NODES, node("node-b"));
    server.put(SERVICES, tunnelled("web"));
    let reported = Reported::synced(&server).await;
    assert!(reported.is_there(NODE_A) && reported.is_there(NODE_B));
    assert_eq!(lists(&server.requests(), NODES), 1, "not first the own one, and then all");
}

#[tokio::test]
async fn all_nodes_are_watched_if_tunnels_are_the_default() {
    let server = with_services(&[]).await;
    server.put(NODES, node("node-b"));
    let cluster = Cluster::new(client(&server), "node-a").with_forwarding(Forwarding::Ipip);
    let mut reported = Reported::of(cluster);
    reported.until(|reported| reported.synced == 1).await;
    assert!(reported.is_there(NODE_A) && reported.is_there(NODE_B));
}

#[tokio::test]
async fn the_watch_widens_when_a_service_gets_a_tunnel() {
    for dialect in [Dialect::Streams, Dialect::Lists] {
        let server = with_services(&["web"]).await;
        server.speak(dialect);
        server.put(NODES, node("node-b"));
        let mut reported = Reported::synced(&server).await;
        server.asked(|r| watches(r, NODES) == 1).await;
        server.put(SERVICES, tunnelled("web"));
        reported.until(|reported| reported.is_there(NODE_B)).await;
        assert!(reported.is_there(NODE_A) && reported.deleted.is_empty());
        assert_eq!(reported.applied.iter().filter(|name| *name == NODE_A).count(), 1);
        // The scope stays wide.
        server.put(SERVICES, service("web"));
        server.put(NODES, node("node-c"));
        reported.until(|reported| reported.is_there("Node node-c")).await;
    }
}

#[tokio::test]
async fn a_node_that_the_cluster_does_not_know_is_named() {
    let server = Server::start().await;
    server.put(NODES, node("node-b"));
    let reported = Reported::synced(&server).await;
    let [problem] = &reported.problems[..] else { panic!("{:?}", reported.problems) };
    assert!(problem.starts_with("Node node-a: is not in the cluster"), "{problem}");
}

fn notice(kind: Kind, reason: Reason) -> Notice {
    let reference = ObjectRef::new(kind, Some("shop"), Some("web"));
    let about = Some(About { reference, uid: "1234".to_owned() });
    Notice { about, reason, message: "spec.ports: something is wrong".to_owned() }
}

#[tokio::test]
async fn a_notice_becomes_an_event_on_its_object() {
    let server = Server::start().await;
    Events::new(client(&server), "node-a").post(notice(Kind::Service, Reason::NotServed));
    let [event] = &server.events(1, 0).await[..] else { panic!() };
    let involved = json!({
        "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "1234"
    });
    assert_eq!(event["involvedObject"], involved);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "NotServed");
    assert_eq!(event["message"], "spec.ports: something is wrong");
    assert_eq!(event["source"], json!({"component": "millrace", "host": "node-a"}));
}

#[tokio::test]
async fn a_problem_on_all_nodes_is_one_event() {
    let server = Server::start().await;
    for node in ["node-a", "node-b"] {
        let events = Events::new(client(&server), node);
        events.post(notice(Kind::Service, Reason::NotServed));
        events.post(notice(Kind::Service, Reason::NoRoom));
        events.post(Notice { about: None, ..notice(Kind::Service, Reason::NotServed) });
    }
    server.events(3, 1).await;
}

#[tokio::test]
async fn an_event_about_a_node_is_where_kubectl_looks_for_it() {
    let server = Server::start().await;
    Events::new(client(&server), "node-a").post(notice(Kind::Node, Reason::NotServed));
    let [event] = &server.events(1, 0).await[..] else { panic!() };
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["involvedObject"]["name"], "web");
    assert!(event["involvedObject"]["namespace"].is_null());
}
