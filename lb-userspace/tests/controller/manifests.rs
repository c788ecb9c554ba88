//! Services from manifests: the agent assigns addresses itself, and remembers them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use lb_controller::{AssigningSource, AssignmentMetrics};
use lb_rules::ipam::{IpamSettings, Range};
use lb_rules::model::{Kind, Object};
use lb_source::{Event, Manifests, Source};
use tokio::sync::mpsc;

use super::world::{SOON, addresses};

const POOL: &str = "
apiVersion: millrace.io/v1alpha1
kind: AddressPool
metadata: {name: a}
spec: {addresses: [192.0.2.1-192.0.2.3]}
---
";

fn service(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{{port: 80}}]{more}}}\n---\n"
    )
}

/// The Services that a source has reported, and problems.
struct Reported {
    events: mpsc::UnboundedReceiver<Event>,
    services: BTreeMap<String, Vec<String>>,
    /// The Services among them with the external traffic policy Local.
    local: BTreeSet<String>,
    problems: Vec<String>,
    is_synced: bool,
}

impl Reported {
    fn start(directory: &Path, ranges: &[&str]) -> Self {
        let manifests = Manifests::of_kinds(vec![directory.join("manifests")], Kind::OF_AGENT);
        let ranges: Vec<Range> = ranges.iter().map(|text| Range::parse(text).unwrap()).collect();
        let source = AssigningSource::new(
            manifests.unwrap(),
            IpamSettings::default(),
            &ranges,
            &directory.join("state"),
            AssignmentMetrics::default(),
        );
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(source.run(sender));
        Self {
            events,
            services: BTreeMap::new(),
            local: BTreeSet::new(),
            problems: Vec::new(),
            is_synced: false,
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Together(events) => events.into_iter().for_each(|event| self.take(event)),
            Event::Applied(Object::Service(service)) => {
                let name = service.metadata.name.clone().unwrap();
                let policy = service.spec.as_ref().unwrap().external_traffic_policy.as_deref();
                if policy == Some("Local") {
                    self.local.insert(name.clone());
                } else {
                    self.local.remove(&name);
                }
                self.services.insert(name, addresses(&service));
            }
            Event::Deleted(reference) => drop(self.services.remove(&reference.name)),
            Event::Problem(problem) => self.problems.push(problem.to_string()),
            Event::Synced(_) => self.is_synced = true,
            Event::Applied(_) => {}
        }
    }

    async fn until(&mut self, such: impl Fn(&Self) -> bool) {
        while !such(self) {
            let event = tokio::time::timeout(SOON, self.events.recv()).await;
            let event = event.unwrap_or_else(|_| panic!("{:?} {:?}", self.services, self.problems));
            self.take(event.expect("the source goes on"));
        }
    }

    fn shown(&self) -> String {
        let shown =
            self.services.iter().map(|(name, addresses)| format!("{name}={}", addresses.join(",")));
        shown.collect::<Vec<_>>().join(" ")
    }
}

fn write(directory: &Path, text: &str) {
    let manifests = directory.join("manifests");
    fs::create_dir_all(&manifests).unwrap();
    // By renaming, so that it is never read in part.
    fs::write(directory.join("new.yaml"), text).unwrap();
    fs::rename(directory.join("new.yaml"), manifests.join("all.yaml")).unwrap();
}

#[tokio::test]
async fn assigned_addresses_are_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [a, b, c] = ["a", "b", "c"].map(|name| service(name, ""));
    write(directory, &format!("{POOL}{a}{b}"));
    let mut reported = Reported::start(directory, &[]);
    reported.until(|reported| reported.is_synced).await;
    assert_eq!(reported.shown(), "a=192.0.2.1 b=192.0.2.2");

    write(directory, &format!("{POOL}{b}{c}"));
    reported.until(|reported| reported.shown() == "b=192.0.2.2 c=192.0.2.1").await;
    drop(reported);

    // Another order of the same Services, and a new one.
    let first = service("a-first", "");
    write(directory, &format!("{POOL}{first}{c}{b}"));
    let mut reported = Reported::start(directory, &[]);
    reported.until(|reported| reported.is_synced).await;
    assert_eq!(reported.shown(), "a-first=192.0.2.3 b=192.0.2.2 c=192.0.2.1");
    drop(reported);

    for damaged in ["{", "[1]", "{\"default/b\": [\"x\"]}"] {
        fs::write(directory.join("state/addresses.json"), damaged).unwrap();
        let mut reported = Reported::start(directory, &[]);
        reported.until(|reported| reported.is_synced).await;
        assert_eq!(reported.shown(), "a-first=192.0.2.1 b=192.0.2.2 c=192.0.2.3", "{damaged}");
    }
}

#[tokio::test]
async fn a_change_that_concerns_no_address_is_passed_on() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &(POOL.to_owned() + &service("a", "")));
    let mut reported = Reported::start(directory.path(), &[]);
    reported.until(|all| all.shown() == "a=192.0.2.1").await;
    let local = service("a", ", externalTrafficPolicy: Local");
    write(directory.path(), &(POOL.to_owned() + &local));
    reported.until(|all| all.local.contains("a")).await;
    assert_eq!(reported.shown(), "a=192.0.2.1");
}

#[tokio::test]
async fn a_service_without_an_address_is_a_problem_and_gets_one_later() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [a, b] = ["a", "b"].map(|name| service(name, ""));
    write(directory, &format!("{a}{b}"));
    let mut reported = Reported::start(directory, &["192.0.2.1"]);
    reported.until(|reported| reported.is_synced).await;
    assert_eq!(reported.shown(), "a=192.0.2.1 b=");
    let [problem] = &reported.problems[..] else { panic!("{:?}", reported.problems) };
    assert!(
        problem.starts_with("Service default/b: status.loadBalancer: PoolExhausted:"),
        "{problem}"
    );

    write(directory, &b);
    reported.until(|reported| reported.shown() == "b=192.0.2.1").await;
}

/// As before there were pools.
#[tokio::test]
async fn addresses_in_the_manifests_stay_and_without_pools_nothing_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let written = service("a", "")
        .replace("---\n", "status: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}\n---\n");
    let without = service("b", "");
    write(directory, &format!("{written}{without}"));
    let mut reported = Reported::start(directory, &[]);
    reported.until(|reported| reported.is_synced).await;
    assert_eq!(reported.shown(), "a=203.0.113.7 b=");
    assert!(reported.problems.is_empty(), "{:?}", reported.problems);
}
