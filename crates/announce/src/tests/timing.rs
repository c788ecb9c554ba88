//! What the settings of an operator change.

use std::time::Duration;

use super::super::*;
use super::world::{MS, World};

const SECOND: Duration = Duration::from_secs(1);
const NODES: usize = 3;
const ADDRESSES: usize = 12;

fn settled_world_with(timing: ElectionTiming) -> World {
    let mut world = World::new(0, 0, 1);
    world.timing = timing;
    for node in 0..NODES {
        world.add(ADDRESSES);
        world.start(node);
    }
    world.run(SECOND * 30);
    let loads = world.loads();
    assert!(loads.iter().sum::<usize>() == ADDRESSES && loads[0] > 0, "{loads:?}");
    world.disturb();
    world.forget_observations();
    world
}

#[test]
fn heartbeats_are_sent_once_in_an_interval() {
    let octets_within = |interval: Duration| {
        let silence = interval * 3;
        let mut world =
            settled_world_with(ElectionTiming { interval, silence, ..ElectionTiming::default() });
        world.octets = 0;
        world.run(SECOND * 20);
        world.octets
    };
    let (often, rarely) = (octets_within(MS * 100), octets_within(MS * 400));
    let ratio = often as f64 / rarely as f64;
    assert!((3.5..4.5).contains(&ratio), "{often} and {rarely} octets");
}

#[test]
fn a_node_counts_as_failed_after_the_limit_of_silence() {
    for silence in [MS * 300, MS * 2_000] {
        let mut world = settled_world_with(ElectionTiming { silence, ..ElectionTiming::default() });
        world.power_off(0);
        world.run(SECOND * 10);
        let without_holder = world.longest_none();
        let expected = silence - MS * 100..silence + MS * 200;
        assert!(expected.contains(&without_holder), "{silence:?}: {without_holder:?}");
    }
}

#[test]
fn the_kernel_answers_without_the_agent_until_the_hold_has_passed() {
    for hold in [SECOND * 10, SECOND * 60] {
        let mut world = settled_world_with(ElectionTiming { hold, ..ElectionTiming::default() });
        let loads = world.loads();
        world.kill(0);
        // An agent renews the deadlines six times during a hold.
        world.run(hold / 6 * 5 - SECOND);
        assert_eq!(world.loads(), loads, "{hold:?}");
        world.run(hold / 6 + SECOND * 5);
        assert_eq!(world.loads()[0], 0, "{hold:?}");
    }
}
