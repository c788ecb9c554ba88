//! Where backends are: on this node, on another one, or unknown. Services may disagree.

use super::*;

const BACKEND: &str = "10.7.0.1";

/// Where a Service says that a backend is: on this node, and the address of its other node.
type Location = (bool, Option<&'static str>);

const HERE: Location = (true, None);
const UNKNOWN: Location = (false, None);
const THERE: Location = (false, Some("10.7.0.2"));
const ELSEWHERE: Location = (false, Some("10.7.0.3"));

fn port_of(frontend: &str, (local, node): Location) -> Option<ServicePort> {
    let mut port = service_port(frontend, &[]);
    port.cluster.insert(Backend {
        address: BACKEND.parse().unwrap(),
        port: 8080,
        local,
        node: node.map(|node| node.parse().unwrap()),
        weight: DEFAULT_WEIGHT,
    });
    Some(port)
}

fn a(location: Location) -> (ServicePortKey, Option<ServicePort>) {
    (key("a"), port_of("10.96.0.1", location))
}

fn b(location: Location) -> (ServicePortKey, Option<ServicePort>) {
    (key("b"), port_of("10.96.0.2", location))
}

/// This node has exactly these addresses.
fn own(addresses: &[&str], change: Change) -> Change {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Change { own_addresses: Some(addresses), ..change }
}

fn state(local: bool, node: Option<&str>) -> BackendState {
    BackendState { local, draining: false, node: node.map(|node| node.parse().unwrap()) }
}

fn found(memory: &Memory) -> BackendState {
    let (.., state) = memory.find(BACKEND).expect("it is a backend");
    state
}

fn after(changes: impl IntoIterator<Item = Change>) -> (Planner, Memory) {
    let (mut planner, mut memory) = (Planner::new(), Memory::default());
    changes.into_iter().for_each(|change| memory.carry_out(&planner.plan(change)));
    (planner, memory)
}

#[test]
fn a_backend_at_an_address_of_this_node_is_here_whatever_services_say() {
    for location in [HERE, UNKNOWN, THERE] {
        let (mut planner, mut memory) = after([own(&[BACKEND], change([a(location)]))]);
        assert_eq!(found(&memory), state(true, None), "{location:?}");
        let mut next = Planner::adopting(memory.snapshot(), Room::default());
        assert!(next.plan(own(&[BACKEND], change([a(location)]))).is_empty(), "{location:?}");

        // The address moves to another machine, and back.
        let described = state(location.0, location.1);
        memory.carry_out(&planner.plan(own(&[], Change::default())));
        assert_eq!(found(&memory), described, "{location:?}");
        memory.carry_out(&planner.plan(own(&[BACKEND], Change::default())));
        assert_eq!(found(&memory), state(true, None), "{location:?}");

        // It moves while no agent runs.
        let mut next = Planner::adopting(memory.snapshot(), Room::default());
        memory.carry_out(&next.plan(own(&[], change([a(location)]))));
        assert_eq!(found(&memory), described, "{location:?}");
    }
}

#[test]
fn services_that_disagree_about_a_backend_have_the_same_result_in_any_order() {
    for (one, other, expected) in [
        (HERE, UNKNOWN, state(true, None)),
        (HERE, THERE, state(true, None)),
        (THERE, UNKNOWN, state(false, None)),
        (THERE, ELSEWHERE, state(false, None)),
        (THERE, THERE, state(false, THERE.1)),
    ] {
        let case = format!("{one:?}, {other:?}");
        for changes in [
            vec![change([a(one)]), change([b(other)])],
            vec![change([b(other)]), change([a(one)])],
            vec![change([a(one), b(other)])],
            vec![change([a(other), b(one)])],
            vec![change([a(other), b(other)]), change([a(one)])],
            vec![change([a(THERE), b(UNKNOWN)]), change([a(one), b(other)])],
        ] {
            assert_eq!(found(&after(changes).1), expected, "{case}");
        }

        let (mut planner, mut memory) = after([change([a(one)]), change([b(other)])]);
        let mut next = Planner::adopting(memory.snapshot(), Room::default());
        let plan = next.plan(change([a(one), b(other)]));
        assert!(plan.is_empty(), "{case}: {plan:?}");
        let indexes = memory.index_of(BACKEND);
        // What is left is as if there had been no other Service.
        for planner in [&mut planner, &mut next] {
            let mut memory = memory.clone();
            memory.carry_out(&planner.plan(change([(key("a"), None)])));
            assert_eq!(found(&memory), state(other.0, other.1), "{case}");
            assert_eq!(memory.index_of(BACKEND), indexes, "{case}");
        }
        // The same if it goes while no agent runs.
        let mut next = Planner::adopting(memory.snapshot(), Room::default());
        memory.carry_out(&next.plan(change([b(other)])));
        assert_eq!(found(&memory), state(other.0, other.1), "{case}");
    }
}

#[test]
fn after_a_restart_another_location_rewrites_no_table() {
    let (_, mut memory) = after([change([a(UNKNOWN)])]);
    let mut next = Planner::adopting(memory.snapshot(), Room::default());
    let plan = next.plan(change([a(THERE)]));
    assert!(matches!(plan.prepare[..], [Step::SetBackend { .. }]), "{plan:?}");
    assert_eq!(plan.steps().count(), 1, "{plan:?}");
    memory.carry_out(&plan);
    assert_eq!(found(&memory), state(false, THERE.1));
}
