//! Backends with weights.

use lb_common::layout::{Forwarding, Member};
use lb_common::maglev::Weight;

use super::*;

/// A service port whose backends have these weights.
fn weighted(backends: &[(&str, u16)]) -> ServicePort {
    let addresses: Vec<&str> = backends.iter().map(|(address, _)| *address).collect();
    let mut port = service_port("10.96.0.1", &addresses);
    let weight = |backend: Backend| {
        let address = backend.address.to_string();
        let (_, weight) = backends.iter().find(|(known, _)| *known == address).unwrap();
        Backend { weight: Weight::new(*weight).unwrap(), local: false, ..backend }
    };
    port.cluster = port.cluster.into_iter().map(weight).collect();
    port
}

fn web(port: ServicePort) -> Change {
    change([(key("web"), Some(port))])
}

/// The slots of each backend of the only pool.
fn shares(memory: &Memory) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    let (_, frontend) = memory.frontends.iter().find(|(key, _)| key.port == 80).unwrap();
    for backend in memory.members(frontend, Scope::Cluster) {
        *shares.entry(backend.address.to_string()).or_default() += 1;
    }
    shares
}

fn weights(memory: &Memory) -> Vec<u16> {
    let weight = |side_entry: &SideEntry| match side_entry {
        SideEntry::Weight { weight, .. } => Some(weight.get()),
        _ => None,
    };
    memory.side_entries.iter().filter_map(weight).collect()
}

#[test]
fn a_changed_weight_changes_the_table_and_no_backend() {
    let (mut planner, mut memory) = (Planner::new(), Memory::default());
    let (one, other) = ("10.244.0.1", "10.244.0.2");
    memory.carry_out(&planner.plan(web(weighted(&[(one, 100), (other, 100)]))));
    assert!(weights(&memory).is_empty(), "the default is not written");
    let slots = shares(&memory).values().sum::<usize>();

    for (weight, expected) in [(300, vec![300]), (50, vec![50]), (100, vec![])] {
        let plan = planner.plan(web(weighted(&[(one, weight), (other, 100)])));
        assert!(!plan.steps().any(|step| matches!(step, Step::SetBackend { .. })), "{plan:?}");
        memory.carry_out(&plan);
        assert_eq!(weights(&memory), expected);
        let exact = slots as f64 * f64::from(weight) / f64::from(weight + 100);
        let share = shares(&memory)[one];
        assert!((share as f64 - exact).abs() <= 1.0, "weight {weight}: {share} of {slots}");
    }
}

#[test]
fn a_restart_finds_the_weights_and_changed_ones_are_written() {
    let (mut planner, mut memory) = (Planner::new(), Memory::default());
    let tunnelled = |weight| ServicePort {
        forwarding: Forwarding::Gue,
        ..weighted(&[("10.244.0.1", weight), ("10.244.0.2", 100)])
    };
    memory.carry_out(&planner.plan(web(tunnelled(50))));
    let adopting = || Planner::adopting(memory.snapshot(), Room::default()).keeping_history(60);
    let mut same = adopting();
    assert!(same.plan(web(tunnelled(50))).is_empty());
    assert_eq!(same.table_checksum(), planner.table_checksum());

    let mut changed = adopting();
    let plan = changed.plan(web(tunnelled(70)));
    assert!(changed.slots_with_history() > 0, "the table before is known: {plan:?}");
    assert_ne!(changed.table_checksum(), planner.table_checksum());
    memory.carry_out(&plan);
    assert_eq!(weights(&memory), [70]);
}

/// Weights that do not match the table, as after a crash, cost a new table and nothing else.
#[test]
fn weights_that_the_table_does_not_have_are_repaired() {
    let (mut planner, mut memory) = (Planner::new(), Memory::default());
    let wanted = || web(weighted(&[("10.244.0.1", 50), ("10.244.0.2", 100)]));
    memory.carry_out(&planner.plan(wanted()));
    let whole = memory.clone();
    let member = |side_entry: &SideEntry| match side_entry {
        SideEntry::Weight { member, .. } => Some(*member),
        _ => None,
    };
    let found = memory.side_entries.iter().find_map(member).unwrap();
    let stray = Member { backend: found.backend + 1, ..found };
    for (lost, added) in [(true, None), (true, Some((found, 7))), (false, Some((stray, 1)))] {
        let mut memory = whole.clone();
        memory.side_entries.retain(|side_entry| !lost || member(side_entry).is_none());
        memory.side_entries.extend(added.map(|(member, weight)| SideEntry::Weight {
            member,
            weight: Weight::new(weight).unwrap(),
        }));
        let plan = Planner::adopting(memory.snapshot(), Room::default()).plan(wanted());
        memory.carry_out(&plan);
        assert_eq!(weights(&memory), [50], "{plan:?}");
        assert_eq!(memory.visible(), whole.visible());
    }
}

#[test]
fn the_checksum_depends_on_the_weights() {
    let checksum = |backends: &[(&str, u16)]| {
        let mut planner = Planner::new();
        planner.plan(web(weighted(backends)));
        planner.table_checksum()
    };
    let (one, other) = ("10.244.0.1", "10.244.0.2");
    let sum = checksum(&[(one, 50), (other, 100)]);
    assert_eq!(sum, checksum(&[(other, 100), (one, 50)]));
    assert_ne!(sum, checksum(&[(one, 100), (other, 50)]));
    assert_ne!(sum, checksum(&[(one, 100), (other, 100)]));
}
