//! Indexes of backends, and backends that stay only for their connections.

use super::super::backends::Backends;
use super::*;

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
fn a_backend_outside_its_pools_drains_until_its_endpoint_is_removed() {
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
    let drains = |found: Option<(u32, u32, BackendState)>| found.map(|(.., s)| s.draining);
    let left = set(with_draining("10.96.0.1", &both[1..], &both[..1]));
    assert_eq!(drains(left), Some(true));
    assert_eq!(left.map(|(i, g, _)| (i, g)), before.map(|(i, g, _)| (i, g)), "flows name it so");
    assert_eq!(set(service_port("10.96.0.1", &both)), before, "it is ready again");
    set(with_draining("10.96.0.1", &both[1..], &both[..1]));
    assert_eq!(set(service_port("10.96.0.1", &both[1..])), None, "its endpoint has gone");
}

#[test]
fn an_endpoint_that_was_never_in_a_pool_gets_no_entry() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let wanted = with_draining("10.96.0.1", &["10.244.0.1"], &["10.244.0.2"]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    assert_eq!(memory.find("10.244.0.2"), None);
}

#[test]
fn a_backend_drains_once_it_is_in_no_pool_of_any_service() {
    let mut planner = Planner::new();
    let mut memory = Memory::default();
    let mut set = |name: &str, wanted| {
        memory.carry_out(&planner.plan(change([(key(name), wanted)])));
        memory.find("10.244.0.1").map(|(.., state)| state.draining)
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
fn draining_backends_keep_draining_after_a_restart() {
    let mut memory = Memory::default();
    let mut planner = Planner::new();
    let pods = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let mut set = |planner: &mut Planner, wanted| {
        memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    };
    set(&mut planner, service_port("10.96.0.1", &pods));
    set(&mut planner, with_draining("10.96.0.1", &pods[1..], &pods[..1]));
    // While no agent runs, another pod begins to terminate.
    let mut planner = Planner::adopting(memory.snapshot(), Room::default());
    let wanted = with_draining("10.96.0.1", &pods[2..], &pods[..2]);
    memory.carry_out(&planner.plan(change([(key("web"), Some(wanted))])));
    let draining: BTreeSet<String> = memory.draining().map(|b| b.address.to_string()).collect();
    assert_eq!(draining, BTreeSet::from(["10.244.0.1".to_owned(), "10.244.0.2".to_owned()]));
}

#[test]
fn backends_that_do_not_fit_are_reported_and_the_rest_is_programmed() {
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
            weight: DEFAULT_WEIGHT,
        });
        memory.carry_out(&planner.plan(change([(key("web"), Some(port))])));
        let (index, generation, state) = memory.find("10.244.0.1").unwrap();
        assert_eq!((index, generation, state.node), (1, 1, node));
    }
}
