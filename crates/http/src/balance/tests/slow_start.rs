//! Endpoints that join others.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Of 10,000 requests.
fn requests_of(world: &mut World, number: u16) -> usize {
    world.spread(10_000).get(&address(number)).copied().unwrap_or(0)
}

#[test]
fn an_endpoint_that_joins_gets_more_with_time() {
    let mut world = World::new(0..9);
    world.update(0..10);
    let counts: Vec<_> = (0..=10)
        .map(|_| {
            let count = requests_of(&mut world, 9);
            world.pass(SECOND);
            count
        })
        .collect();
    assert!((10..120).contains(&counts[0]), "{counts:?}");
    assert!((400..700).contains(&counts[5]), "{counts:?}");
    assert!((850..1150).contains(&counts[10]), "{counts:?}");
}

/// Being idle must not make up for it.
#[test]
fn an_endpoint_that_joins_one_other_starts_slowly() {
    let mut world = World::new([1]);
    world.update([1, 2]);
    let _busy: Vec<_> = (0..10).map(|_| world.request_to(1)).collect();
    let count = requests_of(&mut world, 2);
    assert!((100..1_500).contains(&count), "{count}");
}

#[test]
fn endpoints_start_at_once_if_none_stays() {
    let mut world = World::new(0..3);
    world.update(3..6);
    world.update([3, 4, 5, 6]);
    let spread = world.spread(3_000);
    assert!((3..6).all(|number| spread[&address(number)] > 800), "{spread:?}");
}

#[test]
fn an_endpoint_that_was_draining_does_not_start_again() {
    let mut world = World::new(0..2);
    let draining = Upstream { endpoints: endpoints([0]), draining: endpoints([1]) };
    world.balancer.update(&draining, world.now);
    world.update(0..2);
    assert!(requests_of(&mut world, 1) > 4_000);
}

#[test]
fn an_endpoint_that_was_ejected_starts_slowly() {
    let mut world = World::new(0..10);
    world.fail(9, 5);
    world.pass(10 * SECOND);
    let count = requests_of(&mut world, 9);
    assert!((10..120).contains(&count), "{count}");
    world.pass(10 * SECOND);
    let count = requests_of(&mut world, 9);
    assert!((850..1150).contains(&count), "{count}");
}

#[test]
fn slow_start_can_be_switched_off() {
    let settings = BalancerSettings { slow_start: Duration::ZERO, ..BalancerSettings::default() };
    let mut world = World::with(settings, [0]);
    world.update([0, 1]);
    assert!(requests_of(&mut world, 1) > 4_000);
}

#[test]
fn endpoints_serve_although_all_others_start_slowly_or_are_ejected() {
    let mut world = World::new([0]);
    world.update(0..100);
    world.update(1..100);
    for number in 1..50 {
        world.fail(number, 5);
    }
    assert_eq!(world.count_ejected(), 49);
    let spread = world.spread(1_000);
    assert!(
        spread.keys().all(|chosen| (50..100).any(|number| address(number) == *chosen)),
        "{spread:?}"
    );
}
