//! The least of two, affinity, and endpoints that were tried.

use std::thread;

use proptest::prelude::*;

use super::*;
use crate::affinity::{AffinityTokenKey, Keys};

#[test]
fn nothing_is_chosen_of_nothing() {
    let mut world = World::new([]);
    assert!(world.choose().is_none());
    assert_eq!(world.by_hash(7), None);
}

#[test]
fn of_two_endpoints_the_one_with_fewer_requests_is_chosen() {
    let mut world = World::new([1, 2]);
    let _busy = world.request_to(1);
    assert_eq!(world.spread(100), [(address(2), 100)].into());
}

#[test]
fn idle_endpoints_get_equal_shares() {
    let mut world = World::new(0..10);
    let spread = world.spread(10_000);
    assert!(spread.values().all(|count| (850..1150).contains(count)), "{spread:?}");
}

#[test]
fn a_slow_endpoint_gets_less() {
    let mut world = World::new(0..4);
    // Ten requests are in flight. Endpoint 0 takes ten times as long as the others.
    let mut requests: Vec<(Guard, u32)> = Vec::new();
    let mut slow = 0;
    for _ in 0..4_000 {
        requests.retain_mut(|(_, left)| {
            *left -= 1;
            *left > 0
        });
        while requests.len() < 10 {
            let guard = world.choose().unwrap();
            let is_slow = guard.address() == address(0);
            slow += u32::from(is_slow);
            requests.push((guard, if is_slow { 100 } else { 10 }));
        }
    }
    let all = 4_000;
    assert!(slow * 10 < all, "{slow} of about {all}");
}

#[test]
fn requests_in_flight_are_counted_until_they_end() {
    let mut world = World::new([1, 2, 3]);
    let guards: Vec<_> = (0..30).map(|_| world.choose().unwrap()).collect();
    assert_eq!(world.balancer.pending(), 30);
    drop(guards);
    assert_eq!(world.balancer.pending(), 0);
}

#[test]
fn a_cookie_decides_if_its_endpoint_is_there() {
    let world = World::new([1, 2, 3]);
    let to = |number, keep_on_failure| Affinity { token: world.token(number), keep_on_failure };

    let _busy = world.request_to(2);
    assert_eq!(world.by_affinity(to(2, false), &[]), Some(address(2)));
    assert_ne!(world.by_affinity(to(2, false), &[address(2)]), Some(address(2)));
    assert!(world.by_affinity(to(9, false), &[]).is_some());

    world.fail(2, 5);
    assert_ne!(world.by_affinity(to(2, false), &[]), Some(address(2)));
    assert_eq!(world.by_affinity(to(2, true), &[]), Some(address(2)));
}

#[test]
fn draining_endpoints_get_requests_by_affinity_only() {
    let mut world = World::new([1, 2]);
    let draining = Upstream { endpoints: endpoints([2]), draining: endpoints([1]) };
    world.balancer.update(&draining, world.now);

    let affinity = Affinity { token: world.token(1), keep_on_failure: false };
    assert_eq!(world.by_affinity(affinity, &[]), Some(address(1)));
    assert_eq!(world.spread(100), [(address(2), 100)].into());
    assert!((0..100).all(|hash| world.by_hash(mix_hash(hash)) == Some(address(2))));

    let none = Upstream { endpoints: Vec::new(), draining: endpoints([1]) };
    world.balancer.update(&none, world.now);
    assert!(world.choose().is_none());
    assert_eq!(world.by_affinity(affinity, &[]), Some(address(1)));
}

#[test]
fn threads_share_a_balancer() {
    let world = World::new(0..8);
    let (balancer, now) = (&world.balancer, world.now);
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for i in 0..5_000u64 {
                    let random = mix_hash(thread << 32 | i);
                    let pick = Pick { now, random, hash: None, affinity: None, tried: &[] };
                    let guard = balancer.choose(&pick).unwrap();
                    let outcome = if random.is_multiple_of(3) {
                        RequestOutcome::Success
                    } else {
                        RequestOutcome::Failure
                    };
                    balancer.report(&guard, outcome, now);
                    if i % 100 == 0 {
                        balancer
                            .update(&upstream((0..8).filter(|n| u64::from(*n) != random % 8)), now);
                    }
                }
            });
        }
    });
    world.update(0..8);
    assert_eq!(world.balancer.pending(), 0);
    assert!(world.count_ejected() <= 4);
}

proptest! {
    /// With two random choices the fullest endpoint is above the mean by O(log log n), however many requests there are
    /// (Berenbrink et al., 2006). With one choice, it would be by about 20 in the larger cases.
    #[test]
    fn load_stays_near_the_mean(count in 1..64u16, each in 1..64usize, seed in any::<u32>()) {
        let mut world = World::new(0..count);
        world.random = u64::from(seed) << 32;
        let guards: Vec<_> = (0..usize::from(count) * each).map(|_| world.choose().unwrap()).collect();
        let statuses = world.balancer.statuses(world.now);
        let fullest = statuses.iter().map(|status| status.in_flight).max().unwrap();
        prop_assert!(fullest as usize <= each + 6, "{fullest} of {each}");
        drop(guards);
    }

    #[test]
    fn no_endpoint_is_tried_twice(count in 0..12u16, failed in 0..12u16, hash in any::<Option<u64>>(), random in any::<u64>()) {
        let world = World::new(0..count);
        for number in 0..failed.min(count) {
            world.fail(number, 5);
        }
        let mut tried = Vec::new();
        loop {
            let pick = Pick { now: world.now, random: random ^ tried.len() as u64, hash, affinity: None, tried: &tried };
            let Some(guard) = world.balancer.choose(&pick) else { break };
            prop_assert!(!tried.contains(&guard.address()));
            // Those that are ejected come last.
            let is_ejected = (0..count).find(|n| address(*n) == guard.address()).and_then(|n| world.ejected_for(n));
            let usable = usize::from(count) - world.count_ejected();
            prop_assert_eq!(is_ejected.is_some(), tried.len() >= usable);
            tried.push(guard.address());
        }
        prop_assert_eq!(tried.len(), usize::from(count));
    }
}

/// Replacing the key moves no client: its cookie is known by the old one until it gets one of the new.
#[test]
fn cookies_of_a_former_key_lead_to_their_endpoint() {
    let keys = Keys::default();
    let settings = BalancerSettings { affinity_keys: keys.clone(), ..BalancerSettings::default() };
    let world = World::with(settings, [1, 2, 3]);
    let (old, new) = (AffinityTokenKey::from_secret(b"old"), AffinityTokenKey::from_secret(b"new"));
    let endpoint = |key: &AffinityTokenKey| {
        let affinity = Affinity { token: key.token(address(2)), keep_on_failure: false };
        let count = (0..64).filter(|random| {
            let pick = Pick {
                now: world.now,
                random: mix_hash(*random),
                hash: None,
                affinity: Some(affinity),
                tried: &[],
            };
            world.balancer.choose(&pick).unwrap().address() == address(2)
        });
        count.count() == 64
    };
    keys.set(vec![old.clone()]);
    assert!(endpoint(&old) && !endpoint(&new));
    keys.set(vec![new.clone(), old.clone()]);
    assert!(endpoint(&old) && endpoint(&new));
    let pick = Pick { now: world.now, random: 0, hash: None, affinity: None, tried: &[] };
    let guard = world.balancer.choose(&pick).unwrap();
    assert_eq!(world.balancer.token(&guard), new.token(guard.address()));
    // Also after the endpoints have changed.
    world.update([2, 3, 4]);
    assert!(endpoint(&old) && endpoint(&new));
    keys.set(vec![new.clone()]);
    assert!(!endpoint(&old) && endpoint(&new));
}
