//! Any changes, against a fresh start.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use lb_common::layout::{Bitmap, Forwarding};
use proptest::prelude::*;

use super::*;

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
