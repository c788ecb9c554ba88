extern crate std;
use std::vec::Vec;

use super::*;
use crate::family::{Address4, V4};
use crate::hash::Secret;

const NOW: Ticks = Ticks(1 << 28);

/// Two buckets, and a hash that nobody else has.
struct Table {
    buckets: [FlowBucket<V4>; 2],
    hash: FlowHash,
}

impl Table {
    fn new() -> Self {
        let hash = FlowHash::of_client::<V4>(&Secret::new(2), Address4::from([192, 0, 2, 1]), 1, 6);
        Self { buckets: [FlowBucket::default(), FlowBucket::default()], hash }
    }

    /// Every place holds a flow in this state, last seen then.
    fn filled(state: FlowState, seen: Ticks) -> Self {
        let table = Self::new();
        for _ in 0..2 * WAYS {
            assert!(table.open(seen).is_some());
        }
        (0..2 * WAYS).for_each(|number| table.set(number, state, seen));
        table
    }

    /// Opens one more flow; the number of its place in both buckets.
    fn open(&self, now: Ticks) -> Option<usize> {
        let [one, other] = &self.buckets;
        let claim = claim([(0, one), (1, other)], self.hash, Beginning::Dial, now)?;
        let number = claim.at.bucket as usize * WAYS + claim.at.way as usize;
        claim.publish(now);
        Some(number)
    }

    fn tag(&self, number: usize) -> &FlowTag {
        &self.buckets[number / WAYS].tags[number % WAYS]
    }

    fn set(&self, number: usize, state: FlowState, seen: Ticks) {
        let tag = self.tag(number);
        tag.seen.store(seen.0);
        let word = Word(tag.word.load());
        assert!(tag.word.replace(word.0, word.with_state(state).0));
    }
}

fn seconds_ago(seconds: u32) -> Ticks {
    Ticks(NOW.0 - Ticks::in_seconds(seconds))
}

#[test]
fn buckets_fill_by_halves_after_a_flows_own_place() {
    let table = Table::new();
    let own = table.hash.way();
    let order: Vec<_> = (0..2 * WAYS).map(|_| table.open(NOW).unwrap()).collect();
    let mut expected = std::vec![0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15];
    expected.retain(|number| *number != own);
    expected.insert(0, own);
    assert_eq!(order, expected);
    assert_ne!(own, 0, "else this shows little");
}

#[test]
fn a_flow_whose_time_is_over_leaves_its_place_to_whose_own_it_is() {
    use FlowState::{Closed, Established, Nascent};
    for (state, limit) in [(Closed, 30), (Nascent, 60), (Established, 86_400)] {
        let table = Table::new();
        let own = table.open(seconds_ago(limit)).unwrap();
        table.set(own, state, seconds_ago(limit));
        assert_ne!(table.open(NOW), Some(own), "{state:?}: others are free");
        table.set(own, state, seconds_ago(limit + 1));
        assert_eq!(table.open(NOW), Some(own), "{state:?}");
    }
}

#[test]
fn living_flows_are_never_evicted() {
    use FlowState::{ClosedForward, ClosedReverse, Established};
    for (state, idle) in [(Established, 86_400), (ClosedForward, 3_600), (ClosedReverse, 3_600)] {
        for alive in [0, idle / 2, idle] {
            let table = Table::filled(state, seconds_ago(alive));
            assert_eq!(table.open(NOW), None, "{state:?} for {alive} s");
        }
        let table = Table::filled(state, seconds_ago(idle));
        assert!(table.open(Ticks(NOW.0 + 1)).is_some(), "{state:?} for more than {idle} s");
    }
}

/// Another processor's clock may be ahead.
#[test]
fn a_flow_of_the_next_tick_is_alive() {
    let table = Table::filled(FlowState::Established, Ticks(NOW.0 + 1));
    assert_eq!(table.open(NOW), None);
}

#[test]
fn a_free_place_is_taken_before_a_closed_one_and_that_before_a_nascent_one() {
    let table = Table::filled(FlowState::Nascent, seconds_ago(59));
    table.set(13, FlowState::Closed, NOW);
    table.set(6, FlowState::Free, NOW);
    assert_eq!(table.open(NOW), Some(6));
    assert_eq!(table.open(NOW), Some(13));
}

#[test]
fn of_nascent_flows_the_oldest_goes() {
    let table = Table::filled(FlowState::Established, NOW);
    table.set(3, FlowState::Nascent, seconds_ago(2));
    table.set(10, FlowState::Answered, seconds_ago(3));
    assert_eq!(table.open(NOW), Some(10));
    assert_eq!(table.open(NOW), Some(3));
    assert_eq!(table.open(NOW), Some(3), "the new ones are as new as each other");
}

#[test]
fn a_flow_that_is_over_for_long_goes_before_nascent_ones() {
    let table = Table::filled(FlowState::Nascent, seconds_ago(59));
    table.set(9, FlowState::Established, seconds_ago(86_400 + 120));
    assert_eq!(table.open(NOW), Some(9));
}

#[test]
fn nobody_gets_a_claimed_place() {
    let table = Table::filled(FlowState::Claimed, seconds_ago(80_000));
    assert_eq!(table.open(NOW), None);
}
