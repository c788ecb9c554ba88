//! Plans are carried out on tables in memory, with the invariants checked after every step.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use lb_common::layout::{self, Bitmap, FrontendKind, Pool};
use proptest::prelude::*;

use super::*;
use crate::model::{AddressFamily, Backend, Protocol, ServiceName};

/// The kernel's tables, in memory.
#[derive(Clone, Default)]
struct Memory {
    frontends: BTreeMap<FrontendKey, layout::Frontend>,
    pools: HashMap<u32, Pool>,
    slots: HashMap<u32, u32>,
    backends: BTreeMap<u32, (Option<(BackendKey, Standing)>, u32)>,
    destinations: HashSet<Bitmap>,
    sources: HashSet<Bitmap>,
    details: BTreeSet<Detail>,
}

impl Memory {
    fn carry_out(&mut self, plan: &Plan) {
        for step in plan.steps() {
            self.apply(step);
            self.check(step);
        }
    }

    fn apply(&mut self, step: &Step) {
        match step.clone() {
            Step::SetBackend { index, backend, standing, generation } => {
                self.backends.insert(index, (Some((backend, standing)), generation));
            }
            Step::RetireBackend { index, generation, .. } => {
                self.backends.insert(index, (None, generation));
            }
            Step::WriteTable { offset, table } => self.slots.extend((offset..).zip(table.slots())),
            Step::SwapPool { index, pool } => {
                self.pools.insert(index, pool);
            }
            Step::SetFrontend { key, value } => {
                self.frontends.insert(key, value);
            }
            Step::RemoveFrontend { key } => {
                self.frontends.remove(&key);
            }
            Step::SetDestinationBit(bit) => {
                self.destinations.insert(bit);
            }
            Step::ClearDestinationBits(bits) => {
                self.destinations.retain(|bit| !bits.contains(bit));
            }
            Step::SetSourceBit(bit) => {
                self.sources.insert(bit);
            }
            Step::ClearSourceBit(bit) => {
                self.sources.remove(&bit);
            }
            Step::SetDetail(detail) => {
                self.details.retain(|other| !have_one_place(other, &detail));
                self.details.insert(detail);
            }
            Step::RemoveDetail(detail) => {
                self.details.retain(|other| !have_one_place(other, &detail));
            }
            Step::EndDatagrams(_)
            | Step::ResetServiceTraffic { .. }
            | Step::ResetBackendTraffic { .. } => {}
        }
    }

    /// No packet may meet a half-made service, whenever it comes.
    fn check(&self, after: &Step) {
        let named: HashSet<u32> = self.named().map(|(service_port, _)| service_port).collect();
        for (key, frontend) in &self.frontends {
            assert!(
                frontend.service_port == 0 || named.contains(&frontend.service_port),
                "{key:?} is nobody's after {after:?}"
            );
            if !key.is_node_port() {
                let bit = bits::destination_bit(key.address);
                assert!(
                    self.destinations.contains(&bit),
                    "{key:?} is filtered out after {after:?}"
                );
            }
            for scope in Scope::BOTH {
                for backend in self.members(frontend, scope) {
                    let bit = bits::source_bit(backend);
                    assert!(
                        self.sources.contains(&bit),
                        "{backend} is filtered out after {after:?}"
                    );
                }
            }
        }
    }

    /// The backends in a frontend's table, slot by slot.
    fn members(&self, frontend: &layout::Frontend, scope: Scope) -> Vec<BackendKey> {
        let pool = self.pools.get(&scope.pool_index(frontend.service_port));
        let Pool { offset, size } = pool.copied().unwrap_or_default();
        (offset..offset + size)
            .map(|slot| {
                let index = self.slots[&slot];
                let found = self.backends[&index].0;
                let (backend, standing) = found.expect("a slot names a backend in use");
                assert!(!standing.draining, "{backend} is draining, and chosen");
                backend
            })
            .collect()
    }

    /// All that a packet can tell, without the indexes, which may differ.
    fn visible(&self) -> Vec<(FrontendKey, u8, [Vec<BackendKey>; 2])> {
        let entry = |(key, frontend): (&FrontendKey, &layout::Frontend)| {
            (*key, frontend.kind, Scope::BOTH.map(|scope| self.members(frontend, scope)))
        };
        self.frontends.iter().map(entry).collect()
    }

    /// What tunnels lead to, by what is dialled.
    fn targets(&self) -> BTreeSet<(FrontendKey, u32, BackendKey)> {
        let of = |(key, frontend): (&FrontendKey, &layout::Frontend)| {
            let (key, owner) = (*key, frontend.service_port);
            self.details.iter().filter_map(move |detail| match detail {
                &Detail::Target { target, backend } if target.service_port == owner => {
                    let (backend, standing) = self.backends[&backend].0.expect("it is in use");
                    assert!(standing.local && !standing.draining, "{backend} is a target");
                    Some((key, target.tag, backend))
                }
                _ => None,
            })
        };
        self.frontends.iter().flat_map(of).collect()
    }

    fn named(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        self.details.iter().filter_map(|detail| match detail {
            Detail::Name { service_port, name } => Some((*service_port, format!("{name:?}"))),
            _ => None,
        })
    }

    /// Whose the frontends are, as people are told, and names of which there is no frontend.
    fn owners(&self) -> BTreeSet<(Option<FrontendKey>, String)> {
        let frontend_of = |service_port| {
            let mut all = self.frontends.iter();
            let found = all.find(|(_, frontend)| frontend.service_port == service_port);
            found.map(|(key, _)| *key)
        };
        self.named().map(|(service_port, name)| (frontend_of(service_port), name)).collect()
    }

    /// Without the names.
    fn looked_up(&self) -> Vec<&Detail> {
        self.details.iter().filter(|detail| !matches!(detail, Detail::Name { .. })).collect()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            details: self.details.iter().cloned().collect(),
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            pools: self
                .pools
                .iter()
                .filter(|(_, pool)| pool.size > 0)
                .map(|(index, pool)| (*index, *pool))
                .collect(),
            backends: self
                .backends
                .iter()
                .map(|(&index, &(backend, generation))| FoundBackend { index, generation, backend })
                .collect(),
            destination_bits: self.destinations.iter().copied().collect(),
            source_bits: self.sources.iter().copied().collect(),
        }
    }

    fn index_of(&self, address: &str) -> (u32, u32) {
        let (index, generation, _) = self.find(address).expect("it is a backend");
        (index, generation)
    }

    fn find(&self, address: &str) -> Option<(u32, u32, Standing)> {
        let address: IpAddr = address.parse().unwrap();
        self.backends.iter().find_map(|(&index, &(backend, generation))| {
            let (backend, standing) = backend?;
            (backend.address == address).then_some((index, generation, standing))
        })
    }

    /// The backends that are there for their connections only.
    fn draining(&self) -> impl Iterator<Item = BackendKey> + '_ {
        let used = self.backends.values().filter_map(|(backend, _)| *backend);
        used.filter(|(_, standing)| standing.draining).map(|(backend, _)| backend)
    }
}

/// Whether the kernel has one entry for both.
fn have_one_place(one: &Detail, other: &Detail) -> bool {
    match (one, other) {
        (Detail::Target { target: one, .. }, Detail::Target { target: other, .. }) => one == other,
        (Detail::Name { service_port: one, .. }, Detail::Name { service_port: other, .. }) => {
            one == other
        }
        _ => one == other,
    }
}

fn key(name: &str) -> ServicePortKey {
    ServicePortKey {
        service: ServiceName::new("default", name),
        port: "http".into(),
        protocol: Protocol::Tcp,
        family: AddressFamily::V4,
    }
}

fn service_port(frontend: &str, backends: &[&str]) -> ServicePort {
    let backend = |address: &&str| Backend {
        address: address.parse().unwrap(),
        port: 8080,
        local: true,
        node: None,
    };
    ServicePort {
        frontends: BTreeSet::from([crate::model::Frontend {
            address: frontend.parse().unwrap(),
            port: 80,
            kind: FrontendKind::ClusterIp,
        }]),
        cluster: backends.iter().map(backend).collect(),
        ..ServicePort::default()
    }
}

/// The same, with endpoints that are in no pool.
fn with_draining(frontend: &str, backends: &[&str], draining: &[&str]) -> ServicePort {
    let draining = service_port(frontend, draining).cluster;
    ServicePort { draining, ..service_port(frontend, backends) }
}

fn change(ports: impl IntoIterator<Item = (ServicePortKey, Option<ServicePort>)>) -> Change {
    let shared = |(key, port): (_, Option<_>)| (key, port.map(Arc::new));
    Change { service_ports: ports.into_iter().map(shared).collect(), ..Change::default() }
}

#[test]
fn a_service_port_is_kept_as_the_model_keeps_it() {
    let mut planner = Planner::new();
    // Also one that has been resolved anew, and is as it was.
    for _ in 0..2 {
        let port = Arc::new(service_port("10.96.0.1", &["10.244.0.1"]));
        let service_ports = BTreeMap::from([(key("web"), Some(Arc::clone(&port)))]);
        planner.plan(Change { service_ports, ..Change::default() });
        assert!(Arc::ptr_eq(&planner.held[&key("web")].service_port, &port));
    }
}

#[test]
fn an_unchanged_service_port_costs_no_step() {
    let mut planner = Planner::new();
    let web = service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]);
    assert!(!planner.plan(change([(key("web"), Some(web.clone()))])).is_empty());
    assert!(planner.plan(change([(key("web"), Some(web))])).is_empty());
}

#[test]
fn an_endpoints_change_touches_its_own_pool_only() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    memory.carry_out(&planner.plan(change([
        (key("web"), Some(service_port("10.96.0.1", &["10.244.0.1"]))),
        (key("other"), Some(service_port("10.96.0.2", &["10.244.0.9"]))),
    ])));

    let grown = service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]);
    let plan = planner.plan(change([(key("web"), Some(grown))]));
    memory.carry_out(&plan);

    let swaps = plan.steps().filter(|step| matches!(step, Step::SwapPool { .. })).count();
    let frontends = plan.steps().filter(|step| matches!(step, Step::SetFrontend { .. })).count();
    assert_eq!((swaps, frontends), (1, 0), "{plan:?}");
}

#[test]
fn a_frontend_that_moves_to_another_service_is_never_gone() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let old = service_port("10.96.0.1", &["10.244.0.1"]);
    memory.carry_out(&planner.plan(change([(key("old"), Some(old))])));

    let new = service_port("10.96.0.1", &["10.244.0.2"]);
    let plan = planner.plan(change([(key("old"), None), (key("new"), Some(new))]));
    for step in plan.steps() {
        memory.apply(step);
        assert_eq!(memory.frontends.len(), 2, "its address is one, too; after {step:?}");
    }
    let (_, _, [cluster, _]) = memory.visible().remove(1);
    assert_eq!(cluster[0].to_string(), "10.244.0.2:8080");
}

#[test]
fn two_services_can_swap_their_addresses_in_one_change() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let (a, b) =
        (service_port("10.96.0.1", &["10.244.0.1"]), service_port("10.96.0.2", &["10.244.0.2"]));
    memory.carry_out(&planner.plan(change([(key("a"), Some(a)), (key("b"), Some(b))])));

    let (a, b) =
        (service_port("10.96.0.2", &["10.244.0.1"]), service_port("10.96.0.1", &["10.244.0.2"]));
    memory.carry_out(&planner.plan(change([(key("a"), Some(a)), (key("b"), Some(b))])));

    let led_to: Vec<String> = memory
        .visible()
        .iter()
        .filter(|(key, ..)| key.port != 0)
        .map(|(key, _, [cluster, _])| format!("{} {}", key.address, cluster[0]))
        .collect();
    assert_eq!(led_to, ["10.96.0.1 10.244.0.2:8080", "10.96.0.2 10.244.0.1:8080"]);
}

#[test]
fn a_reused_backend_index_has_another_generation() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut set = |backend: &str| {
        memory.carry_out(
            &planner.plan(change([(key("web"), Some(service_port("10.96.0.1", &[backend])))])),
        );
        memory.index_of(backend)
    };
    let (first, generation) = set("10.244.0.1");
    set("10.244.0.2");
    let (third, next_generation) = set("10.244.0.3");
    assert_eq!(first, third, "the index was free again");
    assert_ne!(generation, next_generation);
}

#[test]
fn a_backend_that_leaves_its_pools_drains_until_its_endpoint_goes() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut set = |wanted| memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    let both = ["10.244.0.1", "10.244.0.2"];
    set(service_port("10.96.0.1", &both));
    let before = memory.find("10.244.0.1");

    let mut set = |wanted| {
        memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
        memory.find("10.244.0.1")
    };
    let drains = |found: Option<(u32, u32, Standing)>| found.map(|(.., s)| s.draining);
    let left = set(with_draining("10.96.0.1", &both[1..], &both[..1]));
    assert_eq!(drains(left), Some(true));
    assert_eq!(left.map(|(i, g, _)| (i, g)), before.map(|(i, g, _)| (i, g)), "flows name it so");
    assert_eq!(set(service_port("10.96.0.1", &both)), before, "it is ready again");
    set(with_draining("10.96.0.1", &both[1..], &both[..1]));
    assert_eq!(set(service_port("10.96.0.1", &both[1..])), None, "its endpoint has gone");
}

#[test]
fn an_endpoint_that_never_was_in_a_pool_costs_nothing() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let wanted = with_draining("10.96.0.1", &["10.244.0.1"], &["10.244.0.2"]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    assert_eq!(memory.find("10.244.0.2"), None);
}

#[test]
fn a_backend_drains_only_when_the_last_of_its_services_lets_it_go() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut set = |name: &str, wanted| {
        memory.carry_out(&planner.plan(change([(key(name), wanted)])));
        memory.find("10.244.0.1").map(|(.., standing)| standing.draining)
    };
    let pod = ["10.244.0.1"];
    set("web", Some(service_port("10.96.0.1", &pod)));
    set("api", Some(service_port("10.96.0.2", &pod)));
    assert_eq!(set("web", Some(with_draining("10.96.0.1", &[], &pod))), Some(false));
    assert_eq!(set("api", Some(with_draining("10.96.0.2", &[], &pod))), Some(true));
    assert_eq!(set("api", None), Some(true), "the other keeps it");
    assert_eq!(set("web", None), None);
}

#[test]
fn a_restarted_agent_lets_backends_drain_on() {
    let mut memory = Memory::default();
    let mut planner = Planner::new();
    let pods = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let mut set = |planner: &mut Planner, wanted| {
        memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    };
    set(&mut planner, service_port("10.96.0.1", &pods));
    set(&mut planner, with_draining("10.96.0.1", &pods[1..], &pods[..1]));
    // While no agent runs one pod begins to terminate, too.
    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    let wanted = with_draining("10.96.0.1", &pods[2..], &pods[..2]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    let draining: BTreeSet<String> = memory.draining().map(|b| b.address.to_string()).collect();
    assert_eq!(draining, BTreeSet::from(["10.244.0.1".to_owned(), "10.244.0.2".to_owned()]));
}

/// The kinds of the entries that say what an address itself is.
fn itself(memory: &Memory, address: &str) -> Option<u8> {
    let key = FrontendKey::of_address(address.parse().unwrap());
    memory.frontends.get(&key).map(|entry| entry.kind)
}

#[test]
fn a_cluster_address_is_ours_as_long_as_it_has_frontends() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut set = |name: &str, wanted| {
        memory.carry_out(&planner.plan(change([(key(name), wanted)])));
        itself(&memory, "10.96.0.1")
    };
    let cluster = Some(FrontendKind::ClusterIp as u8);
    let mut other_port = service_port("10.96.0.1", &[]);
    other_port.frontends = other_port
        .frontends
        .into_iter()
        .map(|f| crate::model::Frontend { port: 81, ..f })
        .collect();
    assert_eq!(set("web", Some(service_port("10.96.0.1", &[]))), cluster);
    assert_eq!(set("api", Some(other_port)), cluster);
    assert_eq!(set("web", None), cluster);
    assert_eq!(set("api", None), None);
}

#[test]
fn an_address_of_this_node_is_never_taken_for_a_cluster_address() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let own = |addresses: &[&str]| Change {
        node_addresses: Some(addresses.iter().map(|a| a.parse().unwrap()).collect()),
        ..Change::default()
    };
    memory.carry_out(&planner.plan(own(&["10.96.0.1"])));
    let web = service_port("10.96.0.1", &[]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(web))])));
    assert_eq!(itself(&memory, "10.96.0.1"), Some(FrontendKind::NodeAddress as u8));
    memory.carry_out(&planner.plan(own(&[])));
    assert_eq!(itself(&memory, "10.96.0.1"), Some(FrontendKind::ClusterIp as u8));
    memory.carry_out(&planner.plan(own(&["10.96.0.1"])));
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(itself(&memory, "10.96.0.1"), Some(FrontendKind::NodeAddress as u8));
}

#[test]
fn a_restarted_agent_keeps_indexes_and_retires_what_has_gone() {
    let mut memory = Memory::default();
    memory.carry_out(&Planner::new().plan(change([
        (key("web"), Some(service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]))),
        (key("gone"), Some(service_port("10.96.0.9", &["10.244.0.9"]))),
    ])));
    let before = memory.index_of("10.244.0.2");

    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    memory.carry_out(&planner.plan(change([(
        key("web"),
        Some(service_port("10.96.0.1", &["10.244.0.2", "10.244.0.3"])),
    )])));

    assert_eq!(memory.index_of("10.244.0.2"), before);
    assert_eq!(memory.visible().len(), 2, "a frontend and its address");
    assert!(
        memory
            .backends
            .values()
            .flat_map(|(b, _)| b)
            .all(|(b, _)| b.to_string() != "10.244.0.9:8080")
    );
}

#[test]
fn backends_that_do_not_fit_are_named_and_the_rest_goes_on() {
    let mut planner = Planner::new();
    planner.backends = Backends::new(3);
    let all = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let plan = planner.plan(change([(key("web"), Some(service_port("10.96.0.1", &all)))]));
    let mut memory = Memory::default();
    memory.carry_out(&plan);
    assert_eq!(plan.problems.len(), 1, "{:?}", plan.problems);
    assert!(plan.problems[0].field.contains("10.244.0.3"), "{:?}", plan.problems);
    assert_eq!(plan.lacking, BTreeSet::from([key("web")]));
    assert_eq!(memory.visible().len(), 2, "a frontend and its address");
}

#[test]
fn datagrams_end_that_may_not_stay_and_others_cost_nothing() {
    let udp = |name| ServicePortKey { protocol: Protocol::Udp, ..key(name) };
    let ended = |plan: &Plan| -> Vec<Datagrams> {
        let datagrams = |step: &Step| match step {
            Step::EndDatagrams(datagrams) => Some(datagrams.clone()),
            _ => None,
        };
        plan.steps().filter_map(datagrams).collect()
    };
    let both = || Some(service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]));
    let other = || Some(service_port("10.96.0.2", &["10.244.0.1"]));
    let mut planner = Planner::new();
    let first = [(udp("dns"), both()), (udp("other"), other()), (key("web"), both())];
    assert_eq!(ended(&planner.plan(change(first))), []);
    let index = |planner: &Planner, name| planner.held[&udp(name)].index;
    let (dns, others) = (index(&planner, "dns"), index(&planner, "other"));
    let backend = BackendKey::new("10.244.0.1".parse().unwrap(), 8080, 17);
    let shared = planner.backends.index_of(&backend).unwrap();

    let fewer = || Some(service_port("10.96.0.1", &["10.244.0.2"]));
    let plan = planner.plan(change([(udp("dns"), fewer()), (key("web"), fewer())]));
    let [datagrams] = &ended(&plan)[..] else { panic!("{plan:?}") };
    assert!(!datagrams.may_stay(dns, shared));
    assert!(datagrams.may_stay(dns, shared + 1));
    assert!(datagrams.may_stay(others, shared));
    assert!(matches!(plan.steps().last(), Some(Step::EndDatagrams(_))));

    // Nobody else has it: its entry says that it is gone.
    let plan = planner.plan(change([(udp("dns"), None)]));
    assert_eq!(ended(&plan), []);
}

/// Clients stay with their backends, and may come from one network only.
fn particular(endpoints: &[&str]) -> ServicePort {
    let mut port = service_port("10.96.0.1", endpoints);
    port.affinity = Some(std::time::Duration::from_secs(60));
    port.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    port
}

#[test]
fn details_come_before_the_frontend_and_go_with_it() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let wanted = particular(&["10.244.0.1", "10.244.0.2"]);
    let plan = planner.plan(change([(key("web"), Some(wanted))]));
    let of =
        |found: fn(&Step) -> bool| plan.steps().enumerate().filter(move |(_, step)| found(step));
    let last_detail = of(|step| matches!(step, Step::SetDetail(_))).map(|(at, _)| at).max();
    let frontend = of(|step| matches!(step, Step::SetFrontend { .. })).map(|(at, _)| at).min();
    assert!(last_detail < frontend, "{last_detail:?}, {frontend:?}");
    memory.carry_out(&plan);
    assert_eq!(memory.details.len(), 4, "two members, a range, a name: {:?}", memory.details);

    memory.carry_out(&planner.plan(change([(key("web"), Some(particular(&["10.244.0.2"])))])));
    assert_eq!(memory.looked_up().len(), 2, "{:?}", memory.details);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.details, BTreeSet::new());
}

#[test]
fn details_that_an_earlier_agent_left_stay_or_go_with_what_they_are_of() {
    let mut memory = Memory::default();
    let before = change([
        (key("web"), Some(particular(&["10.244.0.1"]))),
        (
            key("gone"),
            Some(ServicePort { frontends: BTreeSet::new(), ..particular(&["10.244.0.2"]) }),
        ),
    ]);
    memory.carry_out(&Planner::new().plan(before));
    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    memory.carry_out(&planner.plan(change([(key("web"), Some(particular(&["10.244.0.1"])))])));
    assert_eq!(memory.looked_up().len(), 2, "{:?}", memory.details);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.details, BTreeSet::new());
}

#[test]
fn a_name_is_there_as_long_as_what_it_names() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let port = || Some(service_port("10.96.0.1", &["10.244.0.1"]));
    let named = |memory: &Memory| memory.owners().into_iter().map(|(_, n)| n).collect::<Vec<_>>();
    memory.carry_out(&planner.plan(change([(key("web"), port())])));
    assert_eq!(named(&memory), ["default/web:http (protocol 6, IPv4)"]);
    // Its frontend goes over to another one; the index, and with it the name, does not.
    memory.carry_out(&planner.plan(change([(key("web"), None), (key("new"), port())])));
    assert_eq!(named(&memory), ["default/new:http (protocol 6, IPv4)"]);
    memory.carry_out(&planner.plan(change([(key("new"), None)])));
    assert_eq!(memory.details, BTreeSet::new());
}

/// An agent that knew of no names, or another Service at the same address.
#[test]
fn names_that_lack_or_are_wrong_are_put_right_by_the_first_plan() {
    let port = |address: &str| Some(service_port(address, &["10.244.0.1"]));
    let mut memory = Memory::default();
    let before = [(key("web"), port("10.96.0.1")), (key("old"), port("10.96.0.2"))];
    memory.carry_out(&Planner::new().plan(change(before)));
    let mut without_names = memory.clone();
    without_names.details.clear();
    // Of an index of which nothing else is left.
    let stray = names::detail(77, &key("stray"));
    memory.details.insert(stray);

    for mut memory in [memory, without_names] {
        let mut planner = Planner::adopting(memory.snapshot(), Room::default());
        let wanted = [(key("web"), port("10.96.0.1")), (key("new"), port("10.96.0.2"))];
        for step in planner.plan(change(wanted)).steps() {
            memory.apply(step);
        }
        let names: Vec<String> = memory.owners().into_iter().map(|(_, name)| name).collect();
        let of = |name| format!("default/{name}:http (protocol 6, IPv4)");
        assert_eq!(names, [of("web"), of("new")]);
        assert!(memory.owners().iter().all(|(frontend, _)| frontend.is_some()));
    }
}

#[test]
fn tunnels_lead_to_the_backends_of_this_node_as_long_as_they_are_wanted() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut port = service_port("10.96.0.1", &["10.244.0.1", "10.244.0.2"]);
    let node = Some("10.7.0.2".parse().unwrap());
    port.cluster.insert(Backend {
        address: "10.244.9.9".parse().unwrap(),
        port: 8080,
        local: false,
        node,
    });
    for (forwarding, targets) in
        [(Forwarding::Gue, 2), (Forwarding::Masquerade, 0), (Forwarding::Ipip, 2)]
    {
        let wanted = ServicePort { forwarding, ..port.clone() };
        memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
        // Those of the port, not of the entry that says what its address is.
        let dialled = memory.targets().into_iter().filter(|(key, ..)| key.port == 80);
        assert_eq!(dialled.count(), targets, "{forwarding:?}");
        let web = memory.frontends.iter().find(|(key, _)| key.port == 80);
        assert_eq!(web.unwrap().1.forwarding, forwarding as u8);
    }
    let (_, _, elsewhere) = memory.find("10.244.9.9").unwrap();
    assert_eq!(elsewhere.node, node);
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert_eq!(memory.details, BTreeSet::new());
}

/// A node's address may change while connections go on.
#[test]
fn a_backend_whose_node_moves_keeps_its_index() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    for node in ["10.7.0.2", "10.7.0.3"] {
        let node = Some(node.parse().unwrap());
        let mut port = service_port("10.96.0.1", &[]);
        port.cluster.insert(Backend {
            address: "10.244.0.1".parse().unwrap(),
            port: 8080,
            local: false,
            node,
        });
        memory.carry_out(&planner.plan(change([(key("web"), Some(port))])));
        let (index, generation, standing) = memory.find("10.244.0.1").unwrap();
        assert_eq!((index, generation, standing.node), (1, 1, node));
    }
}

#[test]
fn the_clusters_nodes_are_those_of_the_last_change_also_after_a_restart() {
    let peers = |addresses: &[&str]| Change {
        peers: Some(addresses.iter().map(|address| address.parse().unwrap()).collect()),
        ..Change::default()
    };
    let held =
        |memory: &Memory| memory.details.iter().map(|d| format!("{d:?}")).collect::<Vec<_>>();
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    memory.carry_out(&planner.plan(peers(&["10.7.0.1", "fd07::1"])));
    memory.carry_out(&planner.plan(peers(&["10.7.0.1", "10.7.0.2"])));
    assert_eq!(held(&memory), ["Peer(10.7.0.1)", "Peer(10.7.0.2)"]);
    assert!(planner.plan(peers(&["10.7.0.1", "10.7.0.2"])).is_empty());
    // A change that says nothing of nodes changes nothing of them.
    memory.carry_out(&planner.plan(change([])));
    assert_eq!(memory.details.len(), 2);

    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    memory.carry_out(&planner.plan(peers(&["10.7.0.2", "10.7.0.3"])));
    assert_eq!(held(&memory), ["Peer(10.7.0.2)", "Peer(10.7.0.3)"]);
}

/// A random state of up to four services that share addresses of frontends and backends.
fn state() -> impl Strategy<Value = State> {
    let members = || prop::collection::btree_set(0u8..6, 0..5);
    prop::collection::btree_map(0u8..4, (0u8..6, members(), members(), members()), 0..4)
}

/// By Service: its frontend, its pools, and endpoints that are in neither unless they are.
type State = BTreeMap<u8, (u8, BTreeSet<u8>, BTreeSet<u8>, BTreeSet<u8>)>;

/// The service ports of a state; no two have one frontend, as the model promises.
fn service_ports(state: &State) -> BTreeMap<ServicePortKey, ServicePort> {
    let mut taken = BTreeSet::new();
    let backend = |n: &u8| Backend {
        address: Ipv4Addr::new(10, 244, 0, *n).into(),
        port: 80,
        local: n.is_multiple_of(2),
        node: None,
    };
    state
        .iter()
        .filter(|(_, (frontend, ..))| taken.insert(*frontend))
        .map(|(name, (frontend, cluster, local, others))| {
            let mut port = service_port(&format!("10.96.0.{frontend}"), &[]);
            port.cluster = cluster.iter().map(backend).collect();
            port.local = local.iter().map(backend).collect();
            let pools = &port.cluster | &port.local;
            if name % 2 == 0 {
                port.forwarding = Forwarding::Ipip;
            }
            port.draining = others.iter().map(backend).filter(|b| !pools.contains(b)).collect();
            (key(&name.to_string()), port)
        })
        .collect()
}

fn difference(
    old: &BTreeMap<ServicePortKey, ServicePort>,
    new: &BTreeMap<ServicePortKey, ServicePort>,
) -> Change {
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| (key.clone(), None));
    change(gone.chain(new.iter().map(|(key, port)| (key.clone(), Some(port.clone())))))
}

proptest! {
    #[test]
    fn after_any_changes_the_tables_are_those_of_a_fresh_start(
        states in prop::collection::vec((state(), any::<bool>()), 1..12),
    ) {
        let mut planner = Planner::new();
        let mut memory = Memory::default();
        let mut held = BTreeMap::new();
        for (state, restart) in states {
            let wanted = service_ports(&state);
            if restart {
                planner = Planner::adopting(memory.snapshot(), Room::default());
                held.clear();
            }
            memory.carry_out(&planner.plan(difference(&held, &wanted)));
            held = wanted;

            let mut fresh = Memory::default();
            fresh.carry_out(&Planner::new().plan(difference(&BTreeMap::new(), &held)));
            prop_assert_eq!(memory.visible(), fresh.visible());
            prop_assert_eq!(memory.targets(), fresh.targets());
            prop_assert_eq!(memory.owners(), fresh.owners());
            prop_assert_eq!(&memory.destinations, &fresh.destinations);
            // Beside those that are as at a fresh start there are some with old connections.
            let kept: HashSet<Bitmap> = memory.draining().map(bits::source_bit).collect();
            prop_assert!(memory.sources.is_superset(&fresh.sources));
            prop_assert!(memory.sources.difference(&fresh.sources).all(|bit| kept.contains(bit)));
            for backend in memory.draining() {
                let there = held.values().flat_map(|port| &port.draining);
                prop_assert!(there.map(|b| b.address).any(|address| address == backend.address));
            }
        }
    }
}
