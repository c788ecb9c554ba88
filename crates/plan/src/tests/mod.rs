//! Plans are executed on in-memory tables, with the invariants checked after every step.

mod addresses;
mod adoption;
mod backends;
mod history;
mod locations;
mod memory;
mod random;
mod room;
mod side_entries;
mod weights;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use lb_common::layout::FrontendKind;
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_rules::model::{AddressFamily, Backend, Protocol, ServiceName};

use super::*;

use memory::Memory;

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
        weight: DEFAULT_WEIGHT,
    };
    ServicePort {
        frontends: BTreeSet::from([lb_rules::model::Frontend {
            address: frontend.parse().unwrap(),
            port: 80,
            kind: FrontendKind::ClusterIp,
        }]),
        cluster: backends.iter().map(backend).collect(),
        ..ServicePort::default()
    }
}

/// A service port with endpoints that are in no pool.
fn with_draining(frontend: &str, backends: &[&str], draining: &[&str]) -> ServicePort {
    let draining = service_port(frontend, draining).cluster;
    ServicePort { draining, ..service_port(frontend, backends) }
}

/// One Service for each replica count, with one port and its own endpoints.
fn services(
    replicas: impl IntoIterator<Item = u32>,
) -> impl Iterator<Item = (ServicePortKey, ServicePort)> {
    let mut endpoints = 0;
    (0u32..).zip(replicas).map(move |(number, replicas)| {
        let first = endpoints;
        endpoints += replicas;
        let backend = |n: u32| Backend {
            address: Ipv4Addr::from(0x0a80_0000 + n).into(),
            port: 8080,
            local: n.is_multiple_of(100),
            node: None,
            weight: DEFAULT_WEIGHT,
        };
        let frontend = lb_rules::model::Frontend {
            address: Ipv4Addr::from(0x0a40_0000 + number).into(),
            port: 80,
            kind: FrontendKind::ClusterIp,
        };
        let port = ServicePort {
            frontends: BTreeSet::from([frontend]),
            cluster: (first..endpoints).map(backend).collect(),
            ..ServicePort::default()
        };
        (key(&number.to_string()), port)
    })
}

fn change(ports: impl IntoIterator<Item = (ServicePortKey, Option<ServicePort>)>) -> Change {
    let shared = |(key, port): (_, Option<_>)| (key, port.map(Arc::new));
    Change { service_ports: ports.into_iter().map(shared).collect(), ..Change::default() }
}

#[test]
fn service_ports_are_shared_with_the_model() {
    let mut planner = Planner::new();
    // Also an equal one that was resolved again.
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
fn a_frontend_that_moves_to_another_service_is_never_missing() {
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

/// The kind in the entry of an address itself.
fn itself(memory: &Memory, address: &str) -> Option<u8> {
    let key = FrontendKey::of_address(address.parse().unwrap());
    memory.frontends.get(&key).map(|entry| entry.kind)
}

#[test]
fn a_cluster_address_has_an_entry_as_long_as_it_has_frontends() {
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
        .map(|f| lb_rules::model::Frontend { port: 81, ..f })
        .collect();
    assert_eq!(set("web", Some(service_port("10.96.0.1", &[]))), cluster);
    assert_eq!(set("api", Some(other_port)), cluster);
    assert_eq!(set("web", None), cluster);
    assert_eq!(set("api", None), None);
}

#[test]
fn an_address_of_this_node_is_never_treated_as_a_cluster_address() {
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
fn a_restarted_agent_keeps_indexes_and_retires_removed_endpoints() {
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

fn udp(name: &str) -> ServicePortKey {
    ServicePortKey { protocol: Protocol::Udp, ..key(name) }
}

fn datagrams(service_port: u32, backend: u32, frontend: &str) -> DatagramFlow {
    DatagramFlow { service_port, backend, frontend: frontend.parse().unwrap() }
}

/// The datagram flows that a plan ends.
fn ended(plan: &Plan) -> Vec<Datagrams> {
    let datagrams = |step: &Step| match step {
        Step::SweepFlows(sweep) => {
            assert_eq!(sweep.families, BTreeSet::from([AddressFamily::V4]));
            Some(sweep.datagrams.clone()).filter(|datagrams| !datagrams.is_empty())
        }
        _ => None,
    };
    plan.steps().filter_map(datagrams).collect()
}

#[test]
fn only_datagram_flows_that_may_not_stay_are_ended() {
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
    let [sweep] = &ended(&plan)[..] else { panic!("{plan:?}") };
    assert!(!sweep.may_stay(&datagrams(dns, shared, "10.96.0.1:80")));
    assert!(sweep.may_stay(&datagrams(dns, shared + 1, "10.96.0.1:80")));
    assert!(sweep.may_stay(&datagrams(others, shared, "10.96.0.2:80")));
    assert!(matches!(plan.steps().last(), Some(Step::SweepFlows(_))));

    // No other service port has it: its entry becomes unused.
    let plan = planner.plan(change([(udp("dns"), None)]));
    assert_eq!(ended(&plan), []);
}

#[test]
fn datagram_flows_end_when_their_frontend_leaves_their_service() {
    let backends = ["10.244.0.1"];
    let mut planner = Planner::new();
    let with = |address: &str, port, kind| {
        let mut with = service_port("10.96.0.1", &backends);
        let address = address.parse().unwrap();
        with.frontends.insert(lb_rules::model::Frontend { address, port, kind });
        Some(with)
    };
    planner.plan(change([(udp("dns"), with("203.0.113.1", 80, FrontendKind::LoadBalancer))]));
    let dns = planner.held[&udp("dns")].index;
    let backend = BackendKey::new("10.244.0.1".parse().unwrap(), 8080, 17);
    let backend = planner.backends.index_of(&backend).unwrap();
    let stays = |plan: &Plan, frontend| {
        let [sweep] = &ended(plan)[..] else { panic!("{plan:?}") };
        sweep.may_stay(&datagrams(dns, backend, frontend))
    };

    let node_port = || with("0.0.0.0", 30053, FrontendKind::NodePort);
    let plan = planner.plan(change([(udp("dns"), node_port())]));
    assert!(!stays(&plan, "203.0.113.1:80"));
    assert!(stays(&plan, "10.96.0.1:80"));
    assert!(stays(&plan, "192.0.2.1:30053"));

    // What another Service gets in the same change is not removed from the kernel.
    let plan = planner.plan(change([
        (udp("dns"), Some(service_port("10.96.0.2", &backends))),
        (udp("other"), node_port()),
    ]));
    assert!(!stays(&plan, "10.96.0.1:80"));
    assert!(!stays(&plan, "192.0.2.1:30053"));
    assert!(stays(&plan, "10.96.0.2:80"));

    // Connections do not end with their frontend.
    let web = || (key("web"), Some(service_port("10.96.1.1", &backends)));
    planner.plan(change([web()]));
    let moved = (key("web"), Some(service_port("10.96.1.2", &backends)));
    assert_eq!(ended(&planner.plan(change([moved]))), []);
}

#[test]
fn the_checksum_of_the_tables_does_not_depend_on_the_nodes_history() {
    let service_ports = || services([3, 1, 20]);
    let mut planner = Planner::new();
    assert_eq!(planner.table_checksum(), 0);
    planner.plan(change(service_ports().map(|(key, port)| (key, Some(port)))));
    let checksum = planner.table_checksum();

    // Another node has other local endpoints, and has had other Services: so its indexes differ.
    let mut other = Planner::new();
    other.plan(change([(key("gone"), Some(service_port("10.96.9.9", &["10.244.9.9"])))]));
    for (key, mut port) in service_ports().collect::<Vec<_>>().into_iter().rev() {
        port.cluster = port.cluster.iter().map(|b| Backend { local: !b.local, ..*b }).collect();
        assert_ne!(other.table_checksum(), checksum);
        other.plan(change([(key, Some(port))]));
    }
    other.plan(change([(key("gone"), None)]));
    assert_eq!(other.table_checksum(), checksum);

    // A backend too few, and the same in another Service.
    let (name, mut port) = service_ports().next().unwrap();
    port.cluster.pop_first();
    other.plan(change([(name.clone(), Some(port))]));
    assert_ne!(other.table_checksum(), checksum);
    other.plan(change([(name, None)]));
    let (_, port) = service_ports().next().unwrap();
    other.plan(change([(key("renamed"), Some(port))]));
    assert_ne!(other.table_checksum(), checksum);
}

#[test]
fn tables_that_may_differ_between_nodes_are_not_in_the_checksum() {
    let mut planner = Planner::new();
    let hinted = ServicePort { is_hinted: true, ..service_port("10.96.0.1", &["10.244.0.1"]) };
    planner.plan(change([(key("web"), Some(hinted))]));
    assert_eq!(planner.table_checksum(), 0);
}

#[test]
fn a_restarted_agent_has_the_same_checksum() {
    let ports = || services([3, 20]).map(|(key, port)| (key, Some(port)));
    let (mut planner, mut memory) = (Planner::new(), Memory::default());
    memory.carry_out(&planner.plan(change(ports())));
    let mut next = Planner::adopting(memory.snapshot(), Room::default());
    assert!(next.plan(change(ports())).is_empty());
    assert_eq!(next.table_checksum(), planner.table_checksum());
}
