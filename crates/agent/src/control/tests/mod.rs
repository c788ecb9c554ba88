//! The agent with tables whose writes fail, and with full maps.

mod announcing;
mod dead_nodes;
mod memory;
mod network;
mod portions;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lb_process::notices::{Notice, Notices};
use lb_status::{Health, Metrics, Reporter};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

use memory::MemoryTables;

#[derive(Clone, Default)]
struct Posted(Arc<Mutex<Vec<String>>>);

impl Notices for Posted {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice.to_string());
    }
}

impl Posted {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Case {
    agent: Agent<MemoryTables>,
    memory: MemoryTables,
    posted: Posted,
    health: Arc<Health>,
    reporter: Reporter,
}

impl Case {
    fn new() -> Self {
        Self::with(|outlets| outlets)
    }

    fn with(more: impl FnOnce(Outlets) -> Outlets) -> Self {
        let (memory, posted) = (MemoryTables::default(), Posted::default());
        let health = Arc::new(Health::new(false));
        health.note_attached();
        let notices = Arc::new(posted.clone());
        let outlets = Outlets::new(notices, Arc::clone(&health), Arc::new(Metrics::new()));
        let outlets = more(outlets);
        let reporter = Reporter {
            node_name: "node-a".to_owned(),
            health: Arc::clone(&health),
            condition: Arc::clone(&outlets.condition),
            started: SystemTime::now(),
            waits: lb_waits::Waits::default(),
        };
        let agent = Agent::new("node-a", Planner::new(), memory.clone(), outlets);
        Self { agent, memory, posted, health, reporter }
    }

    /// Handles an event, with none queued behind it.
    fn handle(&mut self, event: Event) {
        let (_sender, mut nothing) = mpsc::unbounded_channel();
        self.agent.take_in(event, &mut nothing);
    }

    fn service(&mut self, name: &str, address: &str) {
        self.handle(applied(service(name, address)));
    }

    fn endpoints(&mut self, service: &str, addresses: &[&str]) {
        let endpoints: Vec<Value> =
            addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        self.handle(applied(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}
            },
            "ports": [{"port": 8080}], "endpoints": endpoints
        })));
    }

    fn node(&mut self, spec: Value) {
        let metadata = json!({"name": "node-a"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec});
        self.handle(applied(node));
    }

    fn is_healthy(&self) -> bool {
        self.health.report(Instant::now()).healthz()
    }
}

fn service(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}
    })
}

fn applied(object: Value) -> Event {
    let text = |field: &str| object[field].as_str().unwrap().to_owned();
    let kind = Kind::of(&text("apiVersion"), &text("kind")).unwrap();
    Event::Applied(Object::read(kind, object).unwrap())
}

#[test]
fn failed_writes_are_retried_with_all_changes_since() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    case.memory.break_down(true);
    case.endpoints("web", &["10.244.0.1"]);
    case.endpoints("web", &["10.244.0.1", "10.244.0.2"]);
    case.service("api", "10.96.0.2");
    case.endpoints("web", &["10.244.0.3"]);
    assert!(case.agent.retry_at().is_some());
    case.agent.retry();
    assert!(case.agent.retry_at().is_some(), "still broken");

    case.memory.break_down(false);
    case.agent.retry();
    assert_eq!(case.agent.retry_at(), None);
    let expected = [("10.96.0.1", vec!["10.244.0.3"]), ("10.96.0.2", vec![])];
    let expected = expected.map(|(frontend, backends)| {
        (frontend.to_owned(), backends.into_iter().map(str::to_owned).collect())
    });
    assert_eq!(case.memory.led_to(), BTreeMap::from(expected));
}

#[test]
fn external_ips_that_a_setting_excludes_are_never_programmed_and_reported_once() {
    let mut case = Case::new();
    let within = "203.0.113.0/24".parse().unwrap();
    case.agent = case.agent.with_external_ips(ExternalIpPolicy::Within(vec![within]));
    let mut web = service("web", "10.96.0.1");
    web["spec"]["externalIPs"] = json!(["203.0.113.1", "198.51.100.1"]);
    case.handle(applied(web.clone()));
    // A change of the node reads what the rules use of it anew.
    case.node(json!({}));
    case.handle(applied(web));
    let frontends: Vec<String> = case.memory.led_to().into_keys().collect();
    assert_eq!(frontends, ["10.96.0.1", "203.0.113.1"]);
    let posted = case.posted.all();
    assert!(posted.len() == 1 && posted[0].contains("spec.externalIPs[1]: 198.51.100.1 is not"));
}

#[test]
fn taints_of_this_node_are_published_once_everything_is_programmed() {
    let mut case = Case::new();
    let taints = case.agent.outlets.taints();
    let keys = || taints.borrow().keys.clone();
    case.memory.break_down(true);
    case.service("web", "10.96.0.1");
    let tainted = json!({"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]});
    case.node(tainted.clone());
    assert_eq!(keys(), [""; 0], "not everything is programmed");
    case.memory.break_down(false);
    case.agent.retry();
    assert_eq!(keys(), ["a", "b"]);
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}, "spec": tainted});
    case.handle(applied(other));
    case.node(json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}));
    assert_eq!(keys(), ["a"]);
}

#[test]
fn a_change_that_cannot_be_programmed_makes_the_node_unhealthy() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    assert!(case.is_healthy());
    case.memory.break_down(true);
    case.service("api", "10.96.0.2");
    let later = Instant::now() + Duration::from_secs(120);
    assert!(!case.health.report(later).healthz());
    case.memory.break_down(false);
    case.agent.retry();
    assert!(case.health.report(later).healthz());
}

#[test]
fn a_fixed_service_is_reported_once_when_it_is_programmed() {
    let mut case = Case::new();
    let mut wrong = service("web", "10.96.0.1");
    wrong["spec"]["ports"] = json!([{"port": 80}, {"name": "b", "port": 99_999}]);
    case.handle(applied(wrong.clone()));
    let posted = case.posted.all().len();
    assert!(posted > 0);
    // Still wrong, with fewer problems.
    wrong["spec"]["ports"][0]["name"] = json!("a");
    case.handle(applied(wrong.clone()));
    case.memory.break_down(true);
    case.service("web", "10.96.0.1");
    let before = case.posted.all();
    assert!(!before.iter().any(|line| line.contains("is fixed")), "{before:?}");
    case.memory.break_down(false);
    case.agent.retry();
    case.service("web", "10.96.0.1");
    case.endpoints("web", &["10.244.0.1"]);
    let fixed = "Service default/web: the problem is fixed, and it is programmed";
    assert_eq!(case.posted.all()[before.len()..], [fixed]);

    // A deleted Service is not reported as fixed.
    case.handle(applied(wrong));
    case.handle(Event::Deleted(ObjectRef::new(Kind::Service, None, Some("web"))));
    let all = case.posted.all();
    assert_eq!(all.iter().filter(|line| line.contains("is fixed")).count(), 1, "{all:?}");
}

#[test]
fn services_without_room_are_reported_once_and_programmed_when_there_is_room() {
    let mut case = Case::new();
    case.memory.limit(1);
    case.service("web", "10.96.0.1");
    case.service("api", "10.96.0.2");
    case.endpoints("web", &["10.244.0.1"]);
    let posted = case.posted.all();
    let [posted] = &posted[..] else { panic!("{posted:?}") };
    let expected = "Service default/api: 10.96.0.2:80 is not served: the map of frontends is full; \
                    a larger --max-service-ports makes room";
    assert_eq!(posted, expected);
    assert_eq!(case.memory.led_to()["10.96.0.1"], ["10.244.0.1"], "the rest goes on");

    case.handle(Event::Deleted(ObjectRef::new(Kind::Service, None, Some("web"))));
    assert_eq!(case.memory.led_to().into_keys().collect::<Vec<_>>(), ["10.96.0.2"]);
}

#[test]
fn details_that_do_not_fit_are_reported_counted_and_written_when_there_is_room() {
    let mut case = Case::new();
    case.memory.limit_details(2);
    for (name, address) in [("web", "10.96.0.1"), ("api", "10.96.0.2")] {
        let mut service = service(name, address);
        service["spec"]["sessionAffinity"] = "ClientIP".into();
        case.handle(applied(service));
        case.endpoints(name, &["10.244.0.1", "10.244.0.2"]);
    }
    let mut restricted = service("shop", "10.96.0.3");
    restricted["spec"]["type"] = "LoadBalancer".into();
    restricted["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    case.handle(applied(restricted));
    let expected = [
        "Service default/api: clients do not stay with all of its endpoints: the map of members \
         is full; a larger --max-endpoints makes room",
        "Service default/shop: clients of 198.51.100.0/24 are kept out: the map of source ranges \
         is full; a larger --max-service-ports makes room",
    ];
    assert_eq!(case.posted.all(), expected);
    assert_eq!(case.agent.retry_at(), None, "nothing waits for them");
    assert_eq!(case.memory.led_to()["10.96.0.2"], ["10.244.0.1", "10.244.0.2"]);
    let exported = |case: &Case| {
        let text = case.agent.outlets.metrics.encode();
        let name = "millrace_map_entries_without_room{map=";
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let without_room = exported(&case);
    assert!(without_room.contains("\"members\"} 2"), "{without_room}");
    assert!(without_room.contains("\"source_ranges\"} 1"), "{without_room}");

    case.handle(Event::Deleted(ObjectRef::new(Kind::Service, None, Some("web"))));
    let without_room = exported(&case);
    assert!(without_room.contains("\"members\"} 0"), "{without_room}");
    assert!(without_room.contains("\"source_ranges\"} 1"), "{without_room}");
    case.handle(Event::Deleted(ObjectRef::new(Kind::Service, None, Some("api"))));
    assert!(exported(&case).contains("\"source_ranges\"} 0"), "{}", exported(&case));
}

#[test]
fn a_node_that_is_being_deleted_gets_no_more_traffic() {
    let mut case = Case::new();
    case.node(json!({}));
    assert!(case.is_healthy());
    case.node(json!({"taints": [
        {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    ]}));
    assert!(!case.is_healthy());
    case.node(json!({}));
    assert!(case.is_healthy());
    case.handle(Event::Deleted(ObjectRef::new(Kind::Node, None, Some("node-a"))));
    assert!(!case.is_healthy());
}

#[test]
fn the_deletion_of_another_node_has_no_effect() {
    let mut case = Case::new();
    case.node(json!({}));
    case.handle(Event::Deleted(ObjectRef::new(Kind::Node, None, Some("node-b"))));
    assert!(case.is_healthy());
}

#[test]
fn the_cost_of_an_endpoints_change_does_not_depend_on_other_services() {
    let writes = |others: usize| {
        let mut case = Case::new();
        for other in 0..others {
            let name = format!("other-{other}");
            case.service(&name, &format!("10.97.{}.{}", other / 250, other % 250 + 1));
            case.endpoints(&name, &["10.244.1.1"]);
        }
        case.service("web", "10.96.0.1");
        case.endpoints("web", &["10.244.0.1"]);
        let before = case.memory.writes();
        case.endpoints("web", &["10.244.0.1", "10.244.0.2"]);
        case.memory.writes() - before
    };
    assert_eq!(writes(0), writes(300));
}

#[test]
fn an_invalid_object_is_reported_once_and_affects_no_other() {
    let mut case = Case::new();
    case.service("web", "10.96.0.1");
    case.service("bad", "10.96.0.300");
    case.endpoints("bad", &["10.244.0.1"]);
    assert_eq!(case.posted.all().len(), 1, "{:?}", case.posted.all());
    assert!(case.posted.all()[0].starts_with("Service default/bad: spec.clusterIP"));
    assert_eq!(case.memory.led_to().len(), 1);
}

#[test]
fn events_that_arrive_together_are_programmed_together() {
    let mut case = Case::new();
    case.endpoints("new", &["10.244.0.2"]);
    for (old, new) in [("old", "new"), ("new", "old")] {
        case.service(old, "10.96.0.1");
        let before = case.memory.removed();
        // With two events the address would have no frontend in between.
        let gone = Event::Deleted(ObjectRef::new(Kind::Service, None, Some(old)));
        case.handle(Event::Together(vec![gone, applied(service(new, "10.96.0.1"))]));
        assert_eq!(case.memory.removed(), before);
    }
}

/// Random events, in order.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A Service is applied with one of few addresses, or deleted.
    Service(u8, Option<u8>),
    /// The endpoints of a Service, as bits; `None`: its slice is deleted.
    Endpoints(u8, Option<u8>),
    /// All writes begin to fail, or to succeed.
    Broken(bool),
    Retry,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    use Happening::{Broken, Endpoints, Retry, Service};
    let service = (0..5u8, prop::option::weighted(0.8, 1..5u8));
    let endpoints = (0..5u8, prop::option::weighted(0.8, 0..16u8));
    let happening = prop_oneof![
        4 => service.prop_map(|(name, address)| Service(name, address)),
        4 => endpoints.prop_map(|(service, bits)| Endpoints(service, bits)),
        2 => any::<bool>().prop_map(Broken),
        1 => Just(Retry),
    ];
    prop::collection::vec(happening, 1..60)
}

impl Case {
    fn happen(&mut self, happening: Happening) {
        let delete = |kind, name: &str| Event::Deleted(ObjectRef::new(kind, None, Some(name)));
        match happening {
            Happening::Service(name, Some(address)) => {
                self.service(&format!("s{name}"), &format!("10.96.0.{address}"));
            }
            Happening::Service(name, None) => {
                self.handle(delete(Kind::Service, &format!("s{name}")));
            }
            Happening::Endpoints(service, Some(bits)) => {
                let addresses: Vec<String> = (0..4)
                    .filter(|bit| bits & (1 << bit) != 0)
                    .map(|bit| format!("10.244.0.{}", bit + 1))
                    .collect();
                let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
                self.endpoints(&format!("s{service}"), &addresses);
            }
            Happening::Endpoints(service, None) => {
                self.handle(delete(Kind::EndpointSlice, &format!("s{service}-1")));
            }
            Happening::Broken(broken) => self.memory.break_down(broken),
            Happening::Retry if self.agent.retry_at().is_some() => self.agent.retry(),
            Happening::Retry => {}
        }
    }
}

proptest! {
    #[test]
    fn after_any_events_and_faults_the_tables_are_those_of_a_fresh_start(
        happenings in happenings(),
    ) {
        let mut case = Case::new();
        happenings.iter().for_each(|&happening| case.happen(happening));
        case.happen(Happening::Broken(false));
        case.happen(Happening::Retry);
        prop_assert_eq!(case.agent.retry_at(), None);

        // Only the last state of each object, and no faults.
        let mut last = BTreeMap::new();
        for happening in happenings {
            match happening {
                Happening::Service(name, _) => drop(last.insert((0, name), happening)),
                Happening::Endpoints(name, _) => drop(last.insert((1, name), happening)),
                Happening::Broken(_) | Happening::Retry => {}
            }
        }
        let mut fresh = Case::new();
        last.into_values().for_each(|happening| fresh.happen(happening));
        prop_assert_eq!(case.memory.led_to(), fresh.memory.led_to());
        prop_assert_eq!(case.agent.programmed_counts(), fresh.agent.programmed_counts());
    }
}
