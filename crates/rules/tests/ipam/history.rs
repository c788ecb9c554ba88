//! Random histories of pools and Services: the incremental assignment gives what the simple one does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_rules::ipam::{AssignmentReason, Ipam, IpamSettings, Pools};
use lb_rules::model::{Kind, ObjectRef, ServiceName};
use proptest::prelude::*;

use super::naive::{Numbers, Policy, Pool, Service, World, obstacle};
use super::object;

#[derive(Clone, Debug)]
enum PoolChange {
    SetPool(u8, Pool),
    DeletePool(u8),
    SetService(u8, Service),
    DeleteService(u8),
}

fn numbers() -> impl Strategy<Value = Numbers> {
    prop_oneof![
        1 => Just(None),
        4 => (1u8..4, 0u8..3).prop_map(|(first, more)| Some((first, first + more))),
    ]
}

fn pool() -> impl Strategy<Value = Pool> {
    let tier = prop_oneof![3 => Just(None), 1 => (0u8..2).prop_map(Some)];
    (numbers(), numbers(), prop::bool::weighted(0.8), 0i32..2, tier).prop_map(
        |(v4, v6, is_automatic, priority, tier)| Pool { v4, v6, is_automatic, priority, tier },
    )
}

fn service() -> impl Strategy<Value = Service> {
    let policy = prop_oneof![Just(Policy::Single), Just(Policy::Prefer), Just(Policy::Require)];
    let requested = prop_oneof![
        3 => Just(Vec::new()),
        2 => prop::collection::vec((0u8..3, any::<bool>(), 1u8..6), 1..3),
    ];
    let rarely = |most| prop_oneof![2 => Just(None), 1 => (0u8..most).prop_map(Some)];
    let ports = prop::collection::btree_set(1u16..4, 1..3);
    let shared = (rarely(2), ports, rarely(2));
    (policy, any::<bool>(), requested, rarely(4), shared, 0u8..2).prop_map(
        |(policy, is_v6_first, requested, pool, (key, ports, local), tier)| Service {
            policy,
            is_v6_first,
            requested,
            pool,
            key,
            ports,
            local,
            tier,
        },
    )
}

fn change() -> impl Strategy<Value = PoolChange> {
    prop_oneof![
        2 => (0u8..3, pool()).prop_map(|(name, pool)| PoolChange::SetPool(name, pool)),
        1 => (0u8..3).prop_map(PoolChange::DeletePool),
        8 => (0u8..8, service()).prop_map(|(name, service)| PoolChange::SetService(name, service)),
        4 => (0u8..8).prop_map(PoolChange::DeleteService),
    ]
}

/// Which of several reasons that other Services can end is reported depends on the order of changes.
fn comparable(reason: AssignmentReason) -> Option<AssignmentReason> {
    (!super::naive::is_temporary(reason)).then_some(reason)
}

fn name(service: u8) -> ServiceName {
    ServiceName::new("default", &format!("service-{service}"))
}

fn make(change: &PoolChange, ipam: &mut Ipam, world: &mut World) {
    match change {
        PoolChange::SetPool(name, pool) => {
            ipam.apply(&object(Kind::AddressPool, pool.manifest(*name)));
            world.pools.insert(*name, pool.clone());
        }
        PoolChange::DeletePool(name) => {
            let reference = ObjectRef::new(Kind::AddressPool, None, Some(&format!("pool-{name}")));
            ipam.delete(&reference);
            world.pools.remove(name);
        }
        PoolChange::SetService(name, service) => {
            ipam.apply(&object(Kind::Service, service.manifest(*name)));
            world.services.insert(*name, service.clone());
        }
        PoolChange::DeleteService(service) => {
            let name = name(*service);
            ipam.delete(&ObjectRef::new(Kind::Service, Some("default"), Some(&name.name)));
            world.services.remove(service);
            world.held.remove(service);
        }
    }
}

/// What must hold whatever the rules in detail.
fn check_invariants(before: &World, world: &World) {
    for (name, held) in &world.held {
        let service = &world.services[name];
        for (other, others) in world.held.iter().filter(|(other, _)| *other > name) {
            let is_common = |at: &&IpAddr| others.contains(at);
            if let Some(address) = held.iter().find(is_common) {
                let reason = obstacle(service, &world.services[other]);
                assert_ne!(
                    reason,
                    Some(AssignmentReason::InUse),
                    "{address} of {name} and {other}"
                );
            }
        }
        let had = before.held.get(name).cloned().unwrap_or_default();
        let requested: Vec<IpAddr> = service
            .requested
            .iter()
            .map(|&(pool, v6, at)| super::naive::address(pool, v6, at))
            .collect();
        for address in held.iter().filter(|address| !had.contains(address)) {
            assert!(
                requested.is_empty() || requested.contains(address),
                "{address} was not requested"
            );
            assert!(world.pool_of(*address).is_some(), "{address} is of no pool");
        }
        if service.policy == Policy::Require && had.is_empty() {
            assert!([0, 2].contains(&held.len().min(2)), "{name} has one family: {held:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_incremental_assignment_is_the_simple_one(
        first in prop::collection::vec((0u8..3, pool()), 1..4),
        history in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..25),
    ) {
        let settings = IpamSettings { is_alone: true, ..IpamSettings::default() };
        let mut ipam = Ipam::new(settings, Pools::new(&[]));
        let mut world = World::default();
        for (name, pool) in first {
            make(&PoolChange::SetPool(name, pool), &mut ipam, &mut world);
        }
        for changes in history {
            let before = world.clone();
            changes.iter().for_each(|change| make(change, &mut ipam, &mut world));
            let changed = ipam.settle();
            world.settle();
            check_invariants(&before, &world);
            let found: BTreeMap<u8, (Vec<IpAddr>, Option<AssignmentReason>)> = (0..8)
                .filter_map(|service| {
                    let outcome = ipam.outcome(&name(service))?;
                    Some((service, (outcome.addresses.clone(), comparable(outcome.reason))))
                })
                .collect();
            let expected: BTreeMap<u8, (Vec<IpAddr>, Option<AssignmentReason>)> = world
                .held
                .iter()
                .map(|(service, held)| (*service, (held.clone(), comparable(world.reasons[service]))))
                .collect();
            prop_assert_eq!(&found, &expected, "after {:?}", changes);
            for (service, expected) in &expected {
                let known = before.held.get(service).map(|held| (held.clone(), comparable(before.reasons[service])));
                prop_assert!(known.as_ref() == Some(expected) || changed.contains(&name(*service)));
            }
            let mut used: BTreeSet<IpAddr> = BTreeSet::new();
            used.extend(world.held.values().flatten().filter(|at| world.pool_of(**at).is_some()).copied());
            let counted: u64 = ipam.usage().map(|usage| usage.used).sum();
            prop_assert_eq!(counted, used.len() as u64);
            // What was settled stays settled.
            prop_assert!(ipam.settle().is_empty());
        }
    }
}

/// A restart finds all addresses in the statuses, and changes none.
#[test]
fn a_restart_changes_nothing() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let histories = prop::collection::vec(change(), 1..40);
    runner
        .run(&histories, |history| {
            let settings = IpamSettings { is_alone: true, ..IpamSettings::default() };
            let mut ipam = Ipam::new(settings.clone(), Pools::new(&[]));
            let mut world = World::default();
            for change in &history {
                make(change, &mut ipam, &mut world);
                ipam.settle();
            }
            let mut restarted = Ipam::new(settings, Pools::new(&[]));
            for (pool, spec) in &world.pools {
                restarted.apply(&object(Kind::AddressPool, spec.manifest(*pool)));
            }
            for (service, spec) in world.services.iter().rev() {
                let outcome = ipam.outcome(&name(*service)).unwrap();
                let mut manifest = spec.manifest(*service);
                let points: Vec<_> =
                    outcome.addresses.iter().map(|at| serde_json::json!({"ip": at})).collect();
                manifest["status"] = serde_json::json!({"loadBalancer": {"ingress": points}});
                restarted.apply(&object(Kind::Service, manifest));
            }
            restarted.settle();
            for service in world.services.keys() {
                // A message may name what was missing first.
                let known = |ipam: &Ipam| {
                    ipam.outcome(&name(*service))
                        .map(|found| (found.addresses.clone(), comparable(found.reason)))
                };
                prop_assert_eq!(known(&restarted), known(&ipam));
            }
            Ok(())
        })
        .unwrap();
}
