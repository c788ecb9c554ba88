//! The earlier owners of slots.

use std::mem;
use std::net::SocketAddr;

use lb_common::layout::{EarlierOwners, Forwarding, NO_BACKEND, PoolSlot};
use lb_common::slot_history::{SlotOwner, entries};

use super::*;

const HOUR: u32 = 3600;

/// A tunnelled service port, with each backend on a node of its own.
fn tunnelled(backends: &[&str], draining: &[&str]) -> ServicePort {
    let mut port = with_draining("10.96.0.1", backends, draining);
    let (cluster, draining) = (mem::take(&mut port.cluster), mem::take(&mut port.draining));
    let elsewhere = |backend| Backend { local: false, ..backend };
    ServicePort {
        cluster: cluster.into_iter().map(elsewhere).collect(),
        draining: draining.into_iter().map(elsewhere).collect(),
        forwarding: Forwarding::Gue,
        ..port
    }
}

/// A tunnelled service port with the node of each backend; the last ones are draining.
fn on_nodes(backends: &[(&str, &str)], draining: &[(&str, &str)]) -> ServicePort {
    let (addresses, _): (Vec<&str>, Vec<&str>) = backends.iter().copied().unzip();
    let (old, _): (Vec<&str>, Vec<&str>) = draining.iter().copied().unzip();
    let mut port = tunnelled(&addresses, &old);
    let place = |backend: Backend| {
        let is_it = |(address, _): &&(&str, &str)| *address == backend.address.to_string();
        let found = backends.iter().chain(draining).find(is_it);
        let (_, node) = found.expect("one of them");
        Backend { node: Some(node.parse().expect("an address")), ..backend }
    };
    port.cluster = port.cluster.into_iter().map(place).collect();
    port.draining = port.draining.into_iter().map(place).collect();
    port
}

fn at(now: u32, port: ServicePort) -> Change {
    Change { now, ..change([(key("web"), Some(port))]) }
}

fn keeping() -> Planner {
    Planner::new().keeping_history(HOUR)
}

/// The slots with earlier owners: the addresses of these, the last one first.
fn earlier(memory: &Memory) -> BTreeMap<PoolSlot, Vec<String>> {
    let address = |index: &u32| {
        let (backend, _) = memory.backends[index].0.expect("an earlier owner is in use");
        backend.address.to_string()
    };
    let rows = memory.side_entries.iter().filter_map(|side_entry| match side_entry {
        SideEntry::Earlier { slot, owners: EarlierOwners { backends, .. } } => {
            let all = backends.iter().take_while(|index| **index != NO_BACKEND);
            Some((*slot, all.map(address).collect()))
        }
        _ => None,
    });
    rows.collect()
}

/// The number of slots with earlier owners.
pub fn rows(memory: &Memory) -> usize {
    earlier(memory).len()
}

/// Earlier owners are in use, and their slots exist and lead to others, unless the owner stands for several.
pub fn check(memory: &Memory) {
    // They are in use.
    drop(earlier(memory));
    for side_entry in &memory.side_entries {
        let SideEntry::Earlier { slot, owners } = side_entry else { continue };
        let pool = memory.pools[&slot.pool];
        assert!(slot.slot < pool.size, "{slot:?} of {pool:?}");
        let current = memory.slots[(pool.offset + slot.slot) as usize];
        let is_wrong = |owner: &SlotOwner| owner.backend == current && !owner.several;
        assert!(!entries(owners).any(|owner| is_wrong(&owner)), "{slot:?}: {owners:?}");
    }
}

#[test]
fn earlier_owners_are_written_before_the_slots_change() {
    let (mut planner, mut memory) = (keeping(), Memory::default());
    let (one, other) = ("10.244.0.1", "10.244.0.2");
    memory.carry_out(&planner.plan(at(10, tunnelled(&[one], &[]))));
    assert!(earlier(&memory).is_empty());
    let plan = planner.plan(at(20, tunnelled(&[other], &[one])));
    let writes = |step: &Step| matches!(step, Step::SetSideEntry(SideEntry::Earlier { .. }));
    let written = plan.steps().position(writes).expect("a row is written");
    let swapped = plan.steps().position(|step| matches!(step, Step::SwapPool { .. }));
    assert!(written < swapped.expect("the pool changes"), "{plan:?}");
    memory.carry_out(&plan);
    assert_eq!(earlier(&memory).into_values().collect::<Vec<_>>(), [[one]]);
    assert_eq!(planner.slots_with_history(), 1);

    // The endpoint is removed, and with it its connections.
    memory.carry_out(&planner.plan(at(30, tunnelled(&[other], &[]))));
    assert!(earlier(&memory).is_empty());
    assert_eq!(planner.slots_with_history(), 0);
}

#[test]
fn a_new_backend_takes_slots_from_members_that_stay() {
    let (mut planner, mut memory) = (keeping(), Memory::default());
    let (two, three) = (["10.244.0.1", "10.244.0.2"], ["10.244.0.1", "10.244.0.2", "10.244.0.3"]);
    memory.carry_out(&planner.plan(at(10, tunnelled(&two, &[]))));
    memory.carry_out(&planner.plan(at(20, tunnelled(&three, &[]))));
    check(&memory);
    let rows = earlier(&memory);
    assert!(rows.len() > 50, "{}", rows.len());
    memory.carry_out(&planner.plan(change([(key("web"), None)])));
    assert!(earlier(&memory).is_empty(), "the Service is gone");
    assert_eq!(planner.slots_with_history(), 0);
}

#[test]
fn the_node_of_an_owner_that_has_gone_is_asked_by_another_backend_on_it() {
    let [near, far, third] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
    let (one, two) = (("10.244.1.1", near), ("10.244.1.2", near));
    let (other, last) = (("10.244.2.1", far), ("10.244.3.1", third));
    let owners = |memory: &Memory| {
        check(memory);
        earlier(memory).into_values().collect::<Vec<_>>()
    };
    // The last owner on the node goes at once, or drains first, while an agent runs or none.
    for (drains, restarts) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut planner, mut memory) = (keeping(), Memory::default());
        let mut plan = |now, backends: &[_], draining: &[_], restarts: bool| {
            if restarts {
                let adopting = Planner::adopting(memory.snapshot(), Room::default());
                planner = adopting.keeping_history(HOUR);
            }
            memory.carry_out(&planner.plan(at(now, on_nodes(backends, draining))));
            owners(&memory)
        };
        assert!(plan(10, &[one], &[], false).is_empty());
        assert_eq!(plan(20, &[two], &[one], false), [[one.0]]);
        assert_eq!(plan(30, &[other], &[one, two], false), [[two.0]], "the node knows both's");
        assert_eq!(plan(35, &[other], &[one, two], restarts), [[two.0]]);
        if !drains {
            assert_eq!(plan(40, &[last], &[one, other], restarts), [[other.0, one.0]]);
        } else {
            assert_eq!(plan(40, &[other], &[one], restarts), [[one.0]]);
            assert_eq!(plan(50, &[last], &[one, other], restarts), [[other.0, one.0]]);
        }
        assert_eq!(plan(60, &[last], &[other], restarts), [[other.0]], "the node has none left");
        assert!(plan(70, &[last], &[], restarts).is_empty(), "it stood for itself");
    }
}

#[test]
fn a_restarted_agent_continues_the_history() {
    let (mut planner, mut memory) = (keeping(), Memory::default());
    let [one, two, three] = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    memory.carry_out(&planner.plan(at(10, tunnelled(&[one], &[]))));
    memory.carry_out(&planner.plan(at(20, tunnelled(&[two], &[one]))));

    let mut next = Planner::adopting(memory.snapshot(), Room::default()).keeping_history(HOUR);
    let plan = next.plan(at(30, tunnelled(&[two], &[one])));
    assert!(plan.is_empty(), "{plan:?}");
    assert_eq!(next.slots_with_history(), 1);

    // Its endpoints changed while no agent ran.
    let mut next = Planner::adopting(memory.snapshot(), Room::default()).keeping_history(HOUR);
    memory.carry_out(&next.plan(at(40, tunnelled(&[three], &[one, two]))));
    assert_eq!(earlier(&memory).into_values().collect::<Vec<_>>(), [[two, one]]);

    // The Service was removed meanwhile; or nothing is to be remembered any more.
    let mut next = Planner::adopting(memory.snapshot(), Room::default()).keeping_history(HOUR);
    let mut gone = memory.clone();
    gone.carry_out(&next.plan(Change::default()));
    assert!(earlier(&gone).is_empty());
    let mut next = Planner::adopting(memory.snapshot(), Room::default());
    memory.carry_out(&next.plan(at(50, tunnelled(&[three], &[one, two]))));
    assert!(earlier(&memory).is_empty());
}

#[test]
fn earlier_owners_are_forgotten_after_a_while() {
    let (mut planner, mut memory) = (keeping(), Memory::default());
    let (one, other) = ("10.244.0.1", "10.244.0.2");
    memory.carry_out(&planner.plan(at(10, tunnelled(&[one], &[]))));
    memory.carry_out(&planner.plan(at(20, tunnelled(&[other], &[one]))));
    memory.carry_out(&planner.plan(Change { now: 20 + HOUR, ..Change::default() }));
    assert_eq!(earlier(&memory).len(), 1);
    memory.carry_out(&planner.plan(Change { now: 90 + HOUR, ..Change::default() }));
    assert!(earlier(&memory).is_empty());
}

#[test]
fn only_tunnelled_services_have_a_history() {
    let (mut planner, mut memory) = (keeping(), Memory::default());
    let masqueraded = |backends: &[&str], draining: &[&str]| ServicePort {
        forwarding: Forwarding::Masquerade,
        ..tunnelled(backends, draining)
    };
    let (one, other) = ("10.244.0.1", "10.244.0.2");
    memory.carry_out(&planner.plan(at(10, masqueraded(&[one], &[]))));
    memory.carry_out(&planner.plan(at(20, masqueraded(&[other], &[one]))));
    assert!(earlier(&memory).is_empty());
    memory.carry_out(&planner.plan(at(30, tunnelled(&[one], &[other]))));
    assert_eq!(earlier(&memory).len(), 1);
    memory.carry_out(&planner.plan(at(40, masqueraded(&[one], &[other]))));
    assert!(earlier(&memory).is_empty());
}

#[test]
fn histories_keep_within_their_room() {
    let room = Room { history: 100, ..Room::default() };
    let mut planner = Planner::with_room(room).keeping_history(HOUR);
    let mut memory = Memory::default();
    let ports = |last: &str| {
        let backends = ["10.244.0.1", "10.244.0.2", last];
        ["a", "b", "c"].map(|name| {
            let port = ServicePort {
                frontends: BTreeSet::from([lb_rules::model::Frontend {
                    address: "10.96.0.1".parse().unwrap(),
                    port: 80 + u16::from(name.as_bytes()[0]),
                    kind: FrontendKind::ClusterIp,
                }]),
                ..tunnelled(&backends, &["10.244.0.3"])
            };
            (key(name), Some(port))
        })
    };
    for (now, last) in (1..).zip(["10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.0.6"]) {
        memory.carry_out(&planner.plan(Change { now, ..change(ports(last)) }));
        assert!(planner.slots_with_history() <= 100);
        assert_eq!(earlier(&memory).len(), planner.slots_with_history());
        check(&memory);
    }
    assert_eq!(planner.slots_with_history(), 100);
}

/// A node that was there while `one`, `two` and `three` had a slot in turn, and one that has joined.
fn old_and_new_node() -> (Planner, (Planner, Memory)) {
    let [one, two, three] = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let (mut old, mut new, mut memory) = (keeping(), keeping(), Memory::default());
    drop(old.plan(at(1_010, tunnelled(&[one], &[]))));
    drop(old.plan(at(1_020, tunnelled(&[two], &[one]))));
    drop(old.plan(at(1_030, tunnelled(&[three], &[one, two]))));
    memory.carry_out(&new.plan(at(5, tunnelled(&[three], &[one, two]))));
    assert!(earlier(&memory).is_empty());
    (old, (new, memory))
}

fn learning(known: Vec<KnownHistory>, now: u32) -> Change {
    Change { known_history: known, now, ..Change::default() }
}

#[test]
fn a_node_that_joins_learns_the_changes_from_before() {
    let (old, (mut new, mut memory)) = old_and_new_node();
    let known = old.known_history(1_040);
    let text = serde_json::to_string(&known).expect("it can be sent");
    assert_eq!(
        text,
        r#"[{"servicePort":"default/web:http/TCP/IPv4","slots":1,"owners":["10.244.0.2:8080","10.244.0.1:8080"],"rows":[0,2,0,10,1,20]}]"#
    );
    assert_eq!(serde_json::from_str::<Vec<KnownHistory>>(&text).expect("and read"), known);

    memory.carry_out(&new.plan(learning(known.clone(), 15)));
    check(&memory);
    let rows = || [["10.244.0.2".to_owned(), "10.244.0.1".to_owned()]];
    assert_eq!(earlier(&memory).into_values().collect::<Vec<_>>(), rows());
    assert_eq!(new.slots_with_history(), 1);
    let again = new.plan(learning(known, 16));
    assert!(again.is_empty(), "{again:?}");

    // Its own changes come before those.
    let draining = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    memory.carry_out(&new.plan(at(20, tunnelled(&["10.244.0.4"], &draining))));
    let rows: Vec<_> = earlier(&memory).into_values().collect();
    assert_eq!(rows, [["10.244.0.3", "10.244.0.2", "10.244.0.1"]]);
}

#[test]
fn what_does_not_belong_to_a_nodes_own_tables_is_not_learned() {
    let (old, (mut new, mut memory)) = old_and_new_node();
    let known = |change: &dyn Fn(&mut KnownHistory)| {
        let mut known = old.known_history(1_040);
        change(&mut known[0]);
        known
    };
    let other: SocketAddr = "10.244.0.9:8080".parse().expect("an address");
    for wrong in [
        known(&|it| it.service_port = "default/other:http/TCP/IPv4".to_owned()),
        known(&|it| it.slots = 7),
        known(&|it| it.slots = u32::MAX),
        known(&|it| it.owners = vec![other; 2]),
        known(&|it| it.owners.clear()),
        known(&|it| it.rows = vec![0]),
        known(&|it| it.rows = vec![0, 0]),
        known(&|it| it.rows = vec![0, 1, 0]),
        known(&|it| it.rows = vec![0, u32::MAX, 0, 10]),
        known(&|it| it.rows = vec![1, 1, 0, 10, u32::MAX, 1, 0, 10]),
        known(&|it| it.rows = vec![0, 2, 2, 10, u32::MAX, 10]),
        known(&|it| it.rows = vec![0, 2, 0, HOUR, 1, u32::MAX]),
        // The current owner.
        known(&|it| {
            it.owners[0].set_ip("10.244.0.3".parse().expect("an address"));
            it.rows = vec![0, 1, 0, 10];
        }),
    ] {
        memory.carry_out(&new.plan(learning(wrong.clone(), 15)));
        assert_eq!(new.slots_with_history(), 0, "{wrong:?}");
        assert!(earlier(&memory).is_empty());
    }
    // Too much of it: what fits into a row is kept.
    let repeated = known(&|it| it.rows = [0, 2, 0, 10, 1, 20].repeat(1_000));
    memory.carry_out(&new.plan(learning(repeated, 15)));
    check(&memory);
    assert_eq!(new.slots_with_history(), 1);
}

#[test]
fn what_is_learned_keeps_within_its_room() {
    let (mut old, mut memory) = (keeping(), Memory::default());
    let mut new = Planner::with_room(Room { history: 40, ..Room::default() }).keeping_history(HOUR);
    let (two, three) = (["10.244.0.1", "10.244.0.2"], ["10.244.0.1", "10.244.0.2", "10.244.0.3"]);
    drop(old.plan(at(10, tunnelled(&two, &[]))));
    drop(old.plan(at(20, tunnelled(&three, &[]))));
    let known = old.known_history(30);
    let rows = old.slots_with_history();
    assert!(rows > 50, "{rows}");
    memory.carry_out(&new.plan(at(5, tunnelled(&three, &[]))));
    memory.carry_out(&new.plan(learning(known.clone(), 6)));
    assert_eq!(new.slots_with_history(), 40);
    assert_eq!(earlier(&memory).len(), 40);
    check(&memory);
    // A node that keeps no history learns none.
    let mut without = Planner::new();
    drop(without.plan(at(5, tunnelled(&three, &[]))));
    assert!(without.plan(learning(known, 6)).is_empty());
}
