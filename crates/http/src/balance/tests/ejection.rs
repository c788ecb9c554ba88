//! Endpoints that fail.

use http::StatusCode;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn failures_in_a_row_eject_an_endpoint() {
    let mut world = World::new([1, 2, 3]);
    world.fail(1, 4);
    world.succeed(1);
    world.fail(1, 4);
    assert_eq!(world.count_ejected(), 0);
    world.fail(1, 1);
    assert_eq!(world.ejected_for(1), Some(10 * SECOND));
    let spread = world.spread(200);
    assert_eq!(spread.keys().copied().collect::<Vec<_>>(), [address(2), address(3)], "{spread:?}");
}

#[test]
fn an_ejected_endpoint_is_tried_again_and_one_failure_ejects_it_for_longer() {
    let mut world = World::new([1, 2]);
    let mut ejections = Vec::new();
    world.fail(1, 5);
    for _ in 0..7 {
        let time = world.ejected_for(1).unwrap();
        ejections.push(time.as_secs());
        world.pass(time - Duration::from_millis(1));
        assert!(world.ejected_for(1).is_some());
        world.pass(Duration::from_millis(1));
        assert!(world.spread(2_000).contains_key(&address(1)));
        world.fail(1, 1);
    }
    assert_eq!(ejections, [10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn an_endpoint_that_recovers_is_forgiven() {
    let mut world = World::new([1, 2]);
    world.fail(1, 5);
    world.pass(10 * SECOND);
    world.succeed(1);
    // The last ejection is not long ago.
    world.fail(1, 5);
    assert_eq!(world.ejected_for(1), Some(20 * SECOND));
    world.pass(320 * SECOND);
    world.succeed(1);
    world.fail(1, 4);
    assert_eq!(world.ejected_for(1), None);
    world.fail(1, 1);
    assert_eq!(world.ejected_for(1), Some(10 * SECOND));
}

#[test]
fn requests_that_began_before_an_ejection_do_not_prolong_it() {
    let world = World::new([1, 2]);
    let requests: Vec<_> = (0..20).map(|_| world.request_to(1)).collect();
    for request in &requests {
        world.balancer.report(request, RequestOutcome::Failure, world.now);
    }
    assert_eq!(world.ejected_for(1), Some(10 * SECOND));
}

#[test]
fn a_single_endpoint_is_never_ejected() {
    let mut world = World::new([1]);
    world.fail(1, 100);
    assert_eq!(world.ejected_for(1), None);
    assert!(world.choose().is_some());
}

#[test]
fn ejections_end_when_too_few_endpoints_remain() {
    let mut world = World::new(1..=4);
    world.fail(1, 5);
    world.pass(SECOND);
    world.fail(2, 5);
    world.fail(3, 50);
    assert_eq!(world.count_ejected(), 2);

    // Of three, one may be ejected: the one that has been for longer returns.
    world.update([1, 2, 3]);
    assert_eq!((world.ejected_for(1), world.ejected_for(2)), (None, Some(10 * SECOND)));
    world.update([2]);
    assert_eq!(world.count_ejected(), 0);
}

#[test]
fn ejection_can_be_switched_off() {
    let world =
        World::with(BalancerSettings { failures: 0, ..BalancerSettings::default() }, [1, 2]);
    world.fail(1, 100);
    assert_eq!(world.count_ejected(), 0);
}

#[test]
fn only_statuses_of_unavailable_endpoints_are_failures() {
    let outcome = |status| RequestOutcome::of_status(StatusCode::from_u16(status).unwrap());
    for status in [502, 503, 504] {
        assert_eq!(outcome(status), RequestOutcome::Failure, "{status}");
    }
    for status in [101, 200, 302, 400, 429, 499, 500, 501, 505, 599] {
        assert_eq!(outcome(status), RequestOutcome::Success, "{status}");
    }
}

#[derive(Clone, Debug)]
enum EjectionEvent {
    Fail(u16),
    Succeed(u16),
    Pass(u64),
    Update(Vec<u16>),
}

fn event() -> impl Strategy<Value = EjectionEvent> {
    prop_oneof![
        6 => (0..6u16).prop_map(EjectionEvent::Fail),
        1 => (0..6u16).prop_map(EjectionEvent::Succeed),
        1 => (0..20_000u64).prop_map(EjectionEvent::Pass),
        1 => prop::collection::vec(0..6u16, 1..7).prop_map(EjectionEvent::Update),
    ]
}

proptest! {
    #[test]
    fn at_most_half_are_ejected(events in prop::collection::vec(event(), 0..200)) {
        let mut world = World::with(BalancerSettings { failures: 2, ..BalancerSettings::default() }, 0..6);
        let mut present: Vec<u16> = (0..6).collect();
        for event in events {
            match event {
                EjectionEvent::Fail(number) if present.contains(&number) => world.fail(number, 1),
                EjectionEvent::Succeed(number) if present.contains(&number) => world.succeed(number),
                EjectionEvent::Pass(millis) => world.pass(Duration::from_millis(millis)),
                EjectionEvent::Update(numbers) => {
                    world.update(numbers.clone());
                    present = numbers;
                    present.sort_unstable();
                    present.dedup();
                }
                _ => {}
            }
            prop_assert!(world.count_ejected() * 2 <= present.len());
            let chosen = world.choose().unwrap().address();
            let number = present.iter().find(|number| address(**number) == chosen).unwrap();
            prop_assert_eq!(world.ejected_for(*number), None);
            prop_assert_eq!(world.ejected_for(*number), None);
            let longest = BalancerSettings::default().longest_ejection;
            for number in &present {
                prop_assert!(world.ejected_for(*number).is_none_or(|time| time <= longest));
            }
        }
    }
}
