//! What stays when endpoints change.

use super::*;

#[test]
fn endpoints_that_stay_keep_what_is_known_about_them() {
    let world = World::new([1, 2, 3]);
    let _busy = world.request_to(1);
    world.fail(1, 4);
    world.update([1, 3, 4]);
    assert_eq!(world.balancer.pending(), 1);
    world.fail(1, 1);
    assert_eq!(world.ejected_for(1), Some(Duration::from_secs(10)));
    world.update([1, 3, 5]);
    assert_eq!(world.ejected_for(1), Some(Duration::from_secs(10)));
}

/// An address that returns may be another pod's.
#[test]
fn an_endpoint_that_returns_is_a_new_one() {
    let world = World::new([1, 2]);
    let old = world.request_to(1);
    world.fail(1, 5);
    world.update([2]);
    world.update([1, 2]);
    assert_eq!((world.ejected_for(1), world.balancer.pending()), (None, 0));
    // What the old one did says nothing about the new one.
    for _ in 0..10 {
        world.balancer.report(&old, RequestOutcome::Failure, world.now);
    }
    drop(old);
    assert_eq!((world.ejected_for(1), world.balancer.pending()), (None, 0));
}

#[test]
fn repeated_endpoints_count_once() {
    let mut world = World::new([1, 1, 1, 2]);
    let spread = world.spread(1_000);
    assert!(spread[&address(1)] < 600, "{spread:?}");
    let both = Upstream { endpoints: endpoints([1]), draining: endpoints([1, 2, 2]) };
    world.balancer.update(&both, world.now);
    let statuses = world.balancer.statuses(world.now);
    let draining: Vec<_> =
        statuses.iter().map(|status| (status.address, status.is_draining)).collect();
    assert_eq!(draining, [(address(1), false), (address(2), true)]);
}
