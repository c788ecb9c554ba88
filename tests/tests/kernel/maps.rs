//! The contents of the kernel's maps after every single write, while Services change, writes fail
//! and agents crash at any step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail, ensure};
use lb_agent::{Agent, Outlets};
use lb_kernel::{BacklogTables, DataPlane, Pins, Sizes, Tables};
use lb_plan::{Planner, Step};
use lb_process::notices::{Notice, Notices};
use lb_rules::model::{Kind, Object, ObjectRef};
use lb_rules::store::Affected;
use lb_source::Event;
use lb_status::{Health, Metrics};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tests::maps::contents::Contents;
use tests::worlds::topology::Topology;
use tokio::sync::mpsc;

/// Small, so that the maps can be read completely after every write.
fn sizes() -> Sizes {
    Sizes::for_flows(8).with_services(64, 64)
}

/// Maps whose contents are checked and recorded after every write.
#[derive(Clone)]
struct WatchedMaps {
    tables: Arc<Mutex<Tables>>,
    /// Whether each of the next writes fails. Writes after those succeed.
    fails: Arc<Mutex<VecDeque<bool>>>,
    seen: Arc<Mutex<Vec<Contents>>>,
}

impl BacklogTables for WatchedMaps {
    fn execute_step(&mut self, step: &Step) -> Result<()> {
        if lock(&self.fails).pop_front() == Some(true) {
            bail!("injected failure");
        }
        let mut tables = lock(&self.tables);
        tables.execute_step(step)?;
        let contents = Contents::read(&tables)?;
        check_whole(&contents, step);
        lock(&self.seen).push(contents);
        Ok(())
    }

    fn change_devices(&mut self, _: &BTreeMap<u32, Option<lb_network::Device>>) -> Result<()> {
        Ok(())
    }

    fn set_node_addresses(&mut self, _: &BTreeSet<IpAddr>) -> Result<()> {
        Ok(())
    }

    fn next_epoch(&mut self) {}

    fn lease_epoch(&mut self, _: bool) {}
    fn end_epoch_lease(&mut self) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No packet meets a partially written Service: every backend of a frontend exists and is not
/// draining.
fn check_whole(contents: &Contents, after: &impl Debug) {
    for (frontend, [_, cluster, local]) in &contents.frontends {
        for backend in cluster.split(' ').chain(local.split(' ')).filter(|name| !name.is_empty()) {
            let is = |draining: bool| {
                let mut all = contents.backends.iter();
                all.any(|line| {
                    line.starts_with(&format!("{backend} ")) && is_draining(line) == draining
                })
            };
            assert!(is(false) && !is(true), "{frontend} selects {backend} after {after:?}");
        }
    }
}

fn is_draining(backend: &str) -> bool {
    backend.contains("draining: true")
}

struct Nowhere;

impl Notices for Nowhere {
    fn post(&self, _: Notice) {}
}

/// Maps that no packet uses, and one agent at a time that writes them.
struct Case {
    agent: Agent<WatchedMaps>,
    watched: WatchedMaps,
    /// The objects that the sources would send to an agent that starts now.
    objects: BTreeMap<ObjectRef, Value>,
}

impl Case {
    /// On new maps, or on those that an earlier case left.
    fn new(tables: &Arc<Mutex<Tables>>) -> Result<Self> {
        let watched =
            WatchedMaps { tables: tables.clone(), fails: Arc::default(), seen: Arc::default() };
        let mut case = Self { agent: agent(&watched)?, watched, objects: BTreeMap::new() };
        case.agent.program_changes(Affected::All);
        Ok(case)
    }

    fn put(&mut self, object: Value) -> Event {
        let event = applied(object.clone());
        let Event::Applied(read) = &event else { unreachable!("`applied` returns no other event") };
        self.objects.insert(read.reference(), object);
        event
    }

    fn delete(&mut self, kind: Kind, name: &str) -> Event {
        let reference = ObjectRef::new(kind, None, Some(name));
        self.objects.remove(&reference);
        Event::Deleted(reference)
    }

    /// Applies these events. Returns the contents of the maps before, and after each write.
    fn happen(&mut self, events: Vec<Event>) -> Result<Vec<Contents>> {
        let before = self.contents()?;
        *lock(&self.watched.seen) = vec![before];
        let (_sender, mut nothing) = mpsc::unbounded_channel();
        self.agent.take_in(Event::Together(events), &mut nothing);
        Ok(lock(&self.watched.seen).clone())
    }

    fn retry(&mut self) {
        if self.agent.retry_at().is_some() {
            self.agent.retry();
        }
    }

    /// The agent crashes, and the next one starts on the maps that it left.
    fn die(&mut self) -> Result<()> {
        self.agent = agent(&self.watched)?;
        for object in self.objects.values() {
            self.agent.store_event(applied(object.clone()));
        }
        self.agent.program_changes(Affected::All);
        Ok(())
    }

    fn succeed(&mut self) {
        lock(&self.watched.fails).clear();
        self.retry();
        assert_eq!(self.agent.retry_at(), None);
    }

    fn contents(&self) -> Result<Contents> {
        Contents::read(&lock(&self.watched.tables))
    }
}

/// An agent that adopts the existing contents of the maps.
fn agent(watched: &WatchedMaps) -> Result<Agent<WatchedMaps>> {
    let planner = Planner::adopting(lock(&watched.tables).snapshot()?, sizes().room());
    let health = Arc::new(Health::new(true));
    let outlets = Outlets::new(Arc::new(Nowhere), health, Arc::new(Metrics::new()));
    Ok(Agent::new("node", planner, watched.clone(), outlets))
}

fn applied(object: Value) -> Event {
    let is_service = object["kind"] == "Service";
    let kind = if is_service { Kind::Service } else { Kind::EndpointSlice };
    Event::Applied(Object::read(kind, object).expect("the test's objects are valid"))
}

/// `external` is the port of its external IP, `203.0.113.10`, if it has one.
fn service(name: &str, cluster_ip: &str, external: Option<u16>, stay: bool) -> Value {
    let ports = json!([{"name": "http", "port": external.unwrap_or(80)}]);
    json!({
        "kind": "Service", "metadata": {"name": name},
        "spec": {
            "clusterIP": cluster_ip,
            "externalIPs": external.map(|_| vec!["203.0.113.10"]),
            "sessionAffinity": if stay { "ClientIP" } else { "None" },
            "ports": ports
        }
    })
}

/// Endpoints by number, and whether each is ready. Those that are not ready are terminating.
fn slice(service: &str, endpoints: &[(u8, bool)]) -> Value {
    let endpoint = |&(number, ready): &(u8, bool)| {
        json!({
            "addresses": [format!("10.244.0.{number}")],
            "conditions": {"ready": ready, "serving": ready, "terminating": !ready}
        })
    };
    json!({
        "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}
        },
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()
    })
}

/// A topology for its BPF file system, and tables pinned there.
fn tables(name: &str) -> Result<(Topology, Arc<Mutex<Tables>>)> {
    let topology = Topology::new(name)?;
    let pins = Pins::open(&topology.pins())?;
    let tables = DataPlane::load(&pins, sizes())?.tables()?;
    Ok((topology, Arc::new(Mutex::new(tables))))
}

/// The backends of a frontend in each of these contents, without repetitions. `None`: no such
/// frontend.
fn led_to(seen: &[Contents], frontend: &str) -> Vec<Option<BTreeSet<String>>> {
    let backends = |contents: &Contents| {
        let [_, cluster, _] = contents.frontends.get(frontend)?;
        Some(cluster.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    };
    let mut states: Vec<_> = seen.iter().map(backends).collect();
    states.dedup();
    states
}

fn ends(numbers: &[u8]) -> Option<BTreeSet<String>> {
    Some(numbers.iter().map(|number| format!("10.244.0.{number}:8080")).collect())
}

#[test]
fn each_change_is_atomic_in_the_maps() -> Result<()> {
    let (_topology, tables) = tables("maps-moments")?;
    let mut case = Case::new(&tables)?;
    let first = [
        service("a", "10.96.0.1", Some(80), false),
        service("b", "10.96.0.2", Some(81), false),
        slice("a", &[(1, true), (2, true)]),
        slice("b", &[(3, true)]),
    ];
    let first = first.map(|object| case.put(object)).into();
    let seen = case.happen(first)?;
    let (eighty, other) = ("203.0.113.10:80 6", "203.0.113.10:81 6");
    assert_eq!(led_to(&seen, eighty), [None, ends(&[1, 2])], "complete when it is added");

    // Two Services swap their ports.
    let swap =
        [service("a", "10.96.0.1", Some(81), false), service("b", "10.96.0.2", Some(80), false)];
    let swap = swap.map(|object| case.put(object)).into();
    let seen = case.happen(swap)?;
    assert_eq!(led_to(&seen, eighty), [ends(&[1, 2]), ends(&[3])]);
    assert_eq!(led_to(&seen, other), [ends(&[3]), ends(&[1, 2])]);

    // A frontend moves from one Service to another.
    let moved =
        [service("b", "10.96.0.2", None, false), service("a", "10.96.0.1", Some(80), false)];
    let moved = moved.map(|object| case.put(object)).into();
    let seen = case.happen(moved)?;
    assert_eq!(led_to(&seen, eighty), [ends(&[3]), ends(&[1, 2])]);

    // A Service is deleted, and another one is created with the same addresses.
    let anew = vec![
        case.delete(Kind::Service, "a"),
        case.delete(Kind::EndpointSlice, "a-1"),
        case.put(service("c", "10.96.0.1", Some(80), false)),
        case.put(slice("c", &[(2, true), (4, true)])),
    ];
    let seen = case.happen(anew)?;
    for frontend in [eighty, "10.96.0.1:80 6"] {
        assert_eq!(led_to(&seen, frontend), [ends(&[1, 2]), ends(&[2, 4])], "{frontend}");
    }

    // An endpoint's readiness flaps.
    for turn in 0..20 {
        let ready = turn % 2 == 1;
        let event = case.put(slice("c", &[(2, true), (4, ready)]));
        let seen = case.happen(vec![event])?;
        let (with, without) = (ends(&[2, 4]), ends(&[2]));
        let expected = if ready { [without, with] } else { [with, without] };
        assert_eq!(led_to(&seen, eighty), expected, "turn {turn}");
    }

    // The Service is deleted.
    let gone = vec![case.delete(Kind::Service, "c")];
    let seen = case.happen(gone)?;
    assert_eq!(led_to(&seen, eighty), [ends(&[2, 4]), None], "removed before its backends");
    Ok(())
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Happening {
    Together(Vec<ObjectChange>),
    /// Whether each of the next writes fails.
    Fail(Vec<bool>),
    Retry,
    Die,
}

#[derive(Clone, Debug)]
enum ObjectChange {
    /// Service number, with its cluster address, external port, and affinity; `None`: deleted.
    Service(u8, Option<(u8, Option<u16>, bool)>),
    /// Service number, with endpoints by number and whether each is ready; `None`: deleted.
    Slice(u8, Option<BTreeMap<u8, bool>>),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let external = prop::option::of(80u16..83);
    let service = prop::option::weighted(0.8, (1u8..5, external, any::<bool>()));
    let endpoints = prop::collection::btree_map(1u8..7, prop::bool::weighted(0.8), 0..5);
    let slice = prop::option::weighted(0.8, endpoints);
    let change = prop_oneof![
        (0u8..4, service).prop_map(|(name, service)| ObjectChange::Service(name, service)),
        (0u8..4, slice).prop_map(|(name, slice)| ObjectChange::Slice(name, slice)),
    ];
    let fails = prop::collection::vec(prop::bool::weighted(0.1), 1..40);
    let happening = prop_oneof![
        6 => prop::collection::vec(change, 1..4).prop_map(Happening::Together),
        2 => fails.prop_map(Happening::Fail),
        1 => Just(Happening::Retry),
        2 => Just(Happening::Die),
    ];
    prop::collection::vec(happening, 1..24)
}

impl Case {
    fn event(&mut self, change: &ObjectChange) -> Event {
        match change {
            ObjectChange::Service(name, Some((address, external, stay))) => {
                let (name, address) = (format!("s{name}"), format!("10.96.0.{address}"));
                self.put(service(&name, &address, *external, *stay))
            }
            ObjectChange::Service(name, None) => self.delete(Kind::Service, &format!("s{name}")),
            ObjectChange::Slice(service, Some(endpoints)) => {
                let endpoints: Vec<_> = endpoints.iter().map(|(n, ready)| (*n, *ready)).collect();
                self.put(slice(&format!("s{service}"), &endpoints))
            }
            ObjectChange::Slice(service, None) => {
                self.delete(Kind::EndpointSlice, &format!("s{service}-1"))
            }
        }
    }

    fn go(&mut self, happening: &Happening) -> Result<()> {
        match happening {
            Happening::Together(changes) => {
                let events = changes.iter().map(|change| self.event(change)).collect();
                self.happen(events)?;
            }
            Happening::Fail(fails) => *lock(&self.watched.fails) = fails.iter().copied().collect(),
            Happening::Retry => self.retry(),
            Happening::Die => self.die()?,
        }
        Ok(())
    }
}

/// Two sets of maps: one with a history, one for the fresh starts that it is compared with.
struct Worlds {
    lived: Arc<Mutex<Tables>>,
    fresh: Arc<Mutex<Tables>>,
}

impl Worlds {
    /// The contents after a fresh start with these objects.
    fn fresh(&self, objects: &BTreeMap<ObjectRef, Value>) -> Result<Contents> {
        let mut fresh = Case::new(&self.fresh)?;
        fresh.objects = objects.clone();
        fresh.die()?;
        fresh.contents()
    }

    fn check(&self, happenings: &[Happening]) -> Result<()> {
        let mut case = Case::new(&self.lived)?;
        let empty = case.contents()?;
        ensure!(empty.frontends.is_empty() && empty.backends.is_empty(), "{empty:?}");
        // Frontends that existed after the last plan and have been wanted since: they must exist
        // at every moment.
        let mut steady = BTreeSet::new();
        for happening in happenings {
            lock(&case.watched.seen).clear();
            // While a retry is due, nothing new is planned. An agent that starts plans everything.
            let plans = case.agent.retry_at().is_none() || matches!(happening, Happening::Die);
            case.go(happening)?;
            let fresh = self.fresh(&case.objects)?;
            steady.retain(|frontend| fresh.frontends.contains_key(frontend));
            for contents in lock(&case.watched.seen).iter() {
                let gone = steady.iter().find(|name| !contents.frontends.contains_key(*name));
                ensure!(gone.is_none(), "{gone:?} was missing for a moment in {happening:?}");
            }
            let there = case.contents()?;
            let is_done = case.agent.retry_at().is_none();
            if plans || is_done {
                let wanted = |frontend: &String| fresh.frontends.contains_key(frontend);
                steady = there.frontends.keys().filter(|name| wanted(name)).cloned().collect();
            }
            if is_done {
                check_same(there, fresh, happening)?;
            }
        }
        case.succeed();
        check_same(case.contents()?, self.fresh(&case.objects)?, &"the end")
    }
}

fn check_same(left: Contents, fresh: Contents, after: &impl Debug) -> Result<()> {
    let (left, fresh) = without_draining(left, fresh);
    ensure!(left == fresh, "after {after:?}:\n{left:#?}\nafter a fresh start:\n{fresh:#?}");
    Ok(())
}

#[test]
fn after_any_events_failures_and_crashes_maps_equal_those_of_a_fresh_start() -> Result<()> {
    let (_topology, lived) = tables("maps-random")?;
    let (_fresh_topology, fresh) = tables("maps-fresh")?;
    let worlds = Worlds { lived, fresh };
    let mut runner = TestRunner::new(Config { cases: 32, ..Config::default() });
    let outcome = runner.run(&happenings(), |happenings| {
        worlds.check(&happenings).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    outcome.map_err(|error| anyhow::anyhow!("{error}"))
}

/// The removal of a frontend fails. Before the agent retries, another Service gets the frontend.
/// After the retry it belongs to that Service.
#[test]
fn a_frontend_whose_removal_failed_can_move_to_another_service() -> Result<()> {
    let (_topology, lived) = tables("maps-removal")?;
    let (_fresh_topology, fresh) = tables("maps-removal-f")?;
    let together = |name, service| Happening::Together(vec![ObjectChange::Service(name, service)]);
    for writes_before in 0..16 {
        let fails = (0..=writes_before).map(|write| write == writes_before).collect();
        Worlds { lived: lived.clone(), fresh: fresh.clone() }.check(&[
            together(2, Some((1, None, false))),
            Happening::Fail(fails),
            together(2, Some((1, Some(81), false))),
            together(0, Some((1, None, false))),
            Happening::Retry,
            together(2, None),
            together(0, None),
        ])?;
    }
    Ok(())
}

/// Draining backends are left out: they exist for connections that a fresh start does not know.
fn without_draining(mut left: Contents, mut fresh: Contents) -> (Contents, Contents) {
    if left.backends.iter().any(|backend| is_draining(backend)) {
        for contents in [&mut left, &mut fresh] {
            contents.backends.retain(|backend| !is_draining(backend));
            contents.source_bits.clear();
        }
    }
    (left, fresh)
}
