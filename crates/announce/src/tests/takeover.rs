//! Takeover of a thousand addresses.

use std::time::Duration;

use super::super::*;
use super::world::{MS, World};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_thousand_addresses_are_taken_over_at_once() {
    let mut world = World::new(3, 1_000, 1);
    world.run(SECOND * 3);
    let sum: usize = world.loads().iter().sum();
    assert_eq!(sum, 1_000, "{:?}", world.loads());
    assert!(world.loads().iter().all(|load| *load <= limit_share(1_000, 3)), "{:?}", world.loads());
    world.disturb();
    world.forget_observations();
    world.power_off(0);
    world.run(SECOND);
    assert!(world.longest_none() <= MS * 500, "{:?}", world.longest_none());
    assert_eq!(world.loads().iter().sum::<usize>(), 1_000);
    // Frames are limited to what switches let through.
    assert!(world.announcements.len() < 1_500, "{}", world.announcements.len());
}
