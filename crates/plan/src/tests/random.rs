//! Random changes, compared with a fresh start.

use std::collections::HashSet;

use lb_common::layout::{Bitmap, Forwarding};
use lb_common::maglev::Weight;
use proptest::prelude::*;

use super::*;

/// A random state of up to four services that share addresses of frontends and backends.
fn state() -> impl Strategy<Value = State> {
    let members = || prop::collection::btree_set(0u8..6, 0..5);
    prop::collection::btree_map(0u8..4, (0u8..6, members(), members(), members()), 0..4)
}

/// By Service: its frontend, its pools, and other endpoints, which are draining unless they are in
/// a pool.
type State = BTreeMap<u8, (u8, BTreeSet<u8>, BTreeSet<u8>, BTreeSet<u8>)>;

/// The service ports of a state. No two have the same frontend, as the model guarantees.
fn service_ports(state: &State) -> BTreeMap<ServicePortKey, ServicePort> {
    let mut taken = BTreeSet::new();
    let weights = [100, 50, 100, 300].map(|weight| Weight::new(weight).unwrap());
    let backend = |frontend: u8, n: u8| Backend {
        address: Ipv4Addr::new(10, 244, 0, n).into(),
        port: 80,
        // Services disagree about where it is.
        local: (frontend + n).is_multiple_of(3),
        node: ((frontend + n) % 3 == 1).then(|| Ipv4Addr::new(10, 7, 0, frontend / 3).into()),
        weight: weights[usize::from(frontend + n) % weights.len()],
    };
    state
        .iter()
        .filter(|(_, (frontend, ..))| taken.insert(*frontend))
        .map(|(name, (frontend, cluster, local, others))| {
            let mut port = service_port(&format!("10.96.0.{frontend}"), &[]);
            let backend = |n: &u8| backend(*frontend, *n);
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

/// Addresses of this node, among those of backends.
fn own_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let own = (0u8..6).prop_map(|n| Ipv4Addr::new(10, 244, 0, n).into());
    prop::collection::btree_set(own, 0..3)
}

proptest! {
    #[test]
    fn after_any_changes_the_tables_are_those_of_a_fresh_start(
        states in prop::collection::vec((state(), own_addresses(), any::<bool>(), state()), 1..12),
    ) {
        let mut planner = Planner::new().keeping_history(1);
        // A node that sees other changes in between, and gives away its history.
        let (mut other, mut held_by_other) = (Planner::new().keeping_history(1), BTreeMap::new());
        let mut memory = Memory::default();
        let mut held = BTreeMap::new();
        for (state, own, restart, between) in states {
            let wanted = service_ports(&state);
            for seen in [service_ports(&between), wanted.clone()] {
                drop(other.plan(difference(&held_by_other, &seen)));
                held_by_other = seen;
            }
            let own_addresses = || Some(own.clone());
            if restart {
                planner = Planner::adopting(memory.snapshot(), Room::default()).keeping_history(1);
                held.clear();
            }
            let change = difference(&held, &wanted);
            let known_history = other.known_history(0);
            let change = Change { own_addresses: own_addresses(), known_history, ..change };
            memory.carry_out(&planner.plan(change));
            super::history::check(&memory);
            prop_assert_eq!(super::history::rows(&memory), planner.slots_with_history());
            held = wanted;
            let adopting = Planner::adopting(memory.snapshot(), Room::default());
            let mut successor = adopting.keeping_history(1);
            let first = || Change {
                own_addresses: own_addresses(),
                ..difference(&BTreeMap::new(), &held)
            };
            let plan = successor.plan(first());
            prop_assert!(plan.is_empty(), "a restart that finds nothing changed: {:?}", plan);

            let mut fresh = Memory::default();
            fresh.carry_out(&Planner::new().plan(first()));
            prop_assert_eq!(memory.visible(), fresh.visible());
            prop_assert_eq!(memory.standings(), fresh.standings());
            prop_assert_eq!(memory.targets(), fresh.targets());
            prop_assert_eq!(memory.owners(), fresh.owners());
            prop_assert_eq!(&memory.destinations, &fresh.destinations);
            // In addition to those of a fresh start, bits of draining backends may be set.
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

/// Room for about half of what a state may want, sometimes only for the smallest tables.
fn tight() -> impl Strategy<Value = Room> {
    let slots = prop_oneof![1u32..40, 200u32..1_200];
    (2u32..5, 2u32..8, slots).prop_map(|(service_ports, backends, pool_slots)| Room {
        service_ports,
        backends,
        pool_slots,
        history: 500,
    })
}

type Members = BTreeSet<BackendKey>;

fn keys(members: &BTreeSet<Backend>) -> Members {
    members.iter().map(|member| BackendKey::of(member, 6)).collect()
}

/// The service port of each frontend, by index, and the members of its pools.
fn served(memory: &Memory) -> BTreeMap<FrontendKey, (u32, [Members; 2])> {
    let frontends = memory.frontends.iter().filter(|(key, _)| key.port != 0);
    let members = |frontend| Scope::BOTH.map(|s| memory.members(frontend, s).into_iter().collect());
    frontends.map(|(key, f)| (*key, (f.service_port, members(f)))).collect()
}

/// Plans and executes as the agent does: a second plan may use the room that the first one gave up.
fn carry_out(
    planner: &mut Planner,
    memory: &mut Memory,
    held: &BTreeMap<ServicePortKey, ServicePort>,
    wanted: &BTreeMap<ServicePortKey, ServicePort>,
) -> BTreeSet<ServicePortKey> {
    let before = served(memory);
    let names: BTreeMap<u32, String> = memory.named().collect();
    // Backends whose clients may still have connections.
    let kept: Vec<(FrontendKey, u32, Scope)> = wanted
        .iter()
        .flat_map(|(owner, port)| port.frontends.iter().map(move |f| (owner, f, port)))
        .filter_map(|(owner, frontend, port)| {
            let key = FrontendKey::new(frontend.address, frontend.port, 6);
            let (index, members) = before.get(&key)?;
            if names[index] != format!("{:?}", names::of(owner)) {
                return None;
            }
            let stay =
                |scope: &Scope| !members[*scope as usize].is_disjoint(&keys(scope.members(port)));
            Some(Scope::BOTH.into_iter().filter(stay).map(move |scope| (key, *index, scope)))
        })
        .flatten()
        .collect();
    let look = |memory: &Memory, step: &Step| {
        for (key, index, scope) in &kept {
            if let Some(frontend) = memory.frontends.get(key)
                && frontend.service_port == *index
            {
                assert!(
                    !memory.members(frontend, *scope).is_empty(),
                    "the {scope} of {key} is empty after {step:?}"
                );
            }
        }
    };
    let plan = planner.plan(difference(held, wanted));
    memory.carry_out_and(&plan, look);
    let (mut lacking, mut makes_room) = (plan.lacking, plan.makes_room);
    for _ in 0..7 {
        if !makes_room || lacking.is_empty() {
            break;
        }
        let again = lacking.iter().map(|key| (key.clone(), wanted.get(key).cloned()));
        let plan = planner.plan(change(again));
        memory.carry_out_and(&plan, look);
        (lacking, makes_room) = (plan.lacking, plan.makes_room);
    }
    lacking
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn in_tight_room_pools_have_live_members_only_and_are_never_emptied(
        room in tight(),
        states in prop::collection::vec((state(), any::<bool>()), 1..10),
    ) {
        let mut planner = Planner::with_room(room).keeping_history(1);
        let mut memory = Memory::default();
        let mut held = BTreeMap::new();
        for (state, restart) in states {
            let wanted = service_ports(&state);
            if restart {
                planner = Planner::adopting(memory.snapshot(), room).keeping_history(1);
                held.clear();
            }
            let lacking = carry_out(&mut planner, &mut memory, &held, &wanted);
            super::history::check(&memory);
            prop_assert!(planner.slots_with_history() <= room.history);
            prop_assert!(memory.slots.len() <= room.pool_slots as usize);
            prop_assert!(memory.backends.keys().all(|&index| index < room.backends));

            let served = served(&memory);
            for (key, port) in &wanted {
                for frontend in &port.frontends {
                    let at = FrontendKey::new(frontend.address, frontend.port, 6);
                    let Some((_, members)) = served.get(&at) else {
                        prop_assert!(lacking.contains(key), "{key} is not served");
                        continue;
                    };
                    for scope in Scope::BOTH {
                        let (is, to_be) = (&members[scope as usize], keys(scope.members(port)));
                        prop_assert!(is.is_subset(&to_be), "{key}: {is:?}, not {to_be:?}");
                        prop_assert!(*is == to_be || lacking.contains(key), "{key}: {is:?}");
                    }
                }
            }
            held = wanted;
        }

        // In the end, all remaining Services fit, however fragmented the slots were before.
        held.clear();
        let last = service_port("10.96.0.1", &["10.244.0.1"]);
        let wanted = BTreeMap::from([(key("last"), last)]);
        let mut planner = Planner::adopting(memory.snapshot(), room);
        let lacking = carry_out(&mut planner, &mut memory, &held, &wanted);
        prop_assert_eq!(lacking, BTreeSet::new());
    }
}
