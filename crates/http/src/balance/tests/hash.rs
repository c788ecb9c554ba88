//! Consistent hashing.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// All replicas, of all versions, must make the same choices. These were computed by another program.
#[test]
fn choices_never_change() {
    let world = World::new(0..10);
    let chosen: Vec<_> = (0..10).map(|key| world.by_hash(mix_hash(key)).unwrap()).collect();
    assert_eq!(chosen, [9, 9, 2, 3, 7, 9, 6, 3, 5, 9].map(address));
}

#[test]
fn shares_are_equal() {
    let world = World::new(0..20);
    let mut counts = BTreeMap::new();
    for key in 0..20_000 {
        *counts.entry(world.by_hash(mix_hash(key)).unwrap()).or_insert(0) += 1;
    }
    assert!(
        counts.len() == 20 && counts.values().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn keys_of_an_ejected_endpoint_spread_over_the_others_and_return() {
    let mut world = World::new(0..5);
    let choices = |world: &World| -> Vec<_> {
        (0..1_000).map(|key| world.by_hash(mix_hash(key)).unwrap()).collect()
    };
    let before = choices(&world);
    world.fail(0, 5);
    let during = choices(&world);
    let mut counts = BTreeMap::new();
    for (before, during) in before.iter().zip(&during) {
        assert_ne!(*during, address(0));
        if *before == address(0) {
            *counts.entry(*during).or_insert(0) += 1;
        } else {
            assert_eq!(before, during);
        }
    }
    assert!(
        counts.len() == 4 && counts.values().all(|count| (25..80).contains(count)),
        "{counts:?}"
    );
    world.pass(Duration::from_secs(10));
    assert_eq!(choices(&world), before);
}

proptest! {
    #[test]
    fn only_the_keys_of_an_endpoint_move_when_it_comes_or_goes(
        numbers in prop::collection::btree_set(0..500u16, 1..50),
        other in 500..1_000u16,
        keys in prop::collection::vec(any::<u64>(), 50),
    ) {
        let with: BTreeSet<_> = numbers.iter().copied().chain([other]).collect();
        let (without, with) = (World::new(numbers), World::new(with));
        for key in keys {
            let before = without.by_hash(key);
            let after = with.by_hash(key);
            prop_assert!(after == before || after == Some(address(other)));
        }
    }

    /// Neither the order of endpoints nor what was before matters.
    #[test]
    fn replicas_agree(
        mut numbers in prop::collection::vec(0..100u16, 1..20),
        before in prop::collection::vec(0..100u16, 0..20),
        key in any::<u64>(),
    ) {
        let one = World::new(numbers.clone());
        numbers.reverse();
        let other = World::new(before);
        other.update(numbers);
        prop_assert_eq!(one.by_hash(key), other.by_hash(key));
    }
}
