extern crate std;
use std::vec::Vec;

use super::entry::EntryWord;
use super::*;
use crate::family::{Address4, V4};
use crate::hash::{FlowHash, Secret};
use crate::layout::{BUCKET_ENTRIES, FlowBucket, FlowState, FlowTag, Settings, Ticks};

const NOW: Ticks = Ticks(1 << 28);
const SETTINGS: Settings = Settings::new(2, 2);

/// Two buckets, and a hash that no other flow has.
struct TwoBuckets {
    buckets: [FlowBucket<V4>; 2],
    hash: FlowHash,
}

impl TwoBuckets {
    fn new() -> Self {
        Self { buckets: [FlowBucket::default(), FlowBucket::default()], hash: hash_of(1) }
    }

    /// Every entry holds a flow of another client in this state, last seen at `seen`.
    fn filled(state: FlowState, seen: Ticks) -> Self {
        let table = Self::new();
        for port in 0..2 * BUCKET_ENTRIES {
            assert!(table.open_by(hash_of(100 + port as u16), seen).is_some());
        }
        (0..2 * BUCKET_ENTRIES).for_each(|number| table.set(number, state, seen));
        table
    }

    /// Opens one more flow. Returns the number of its entry over both buckets.
    fn open(&self, now: Ticks) -> Option<usize> {
        self.open_by(self.hash, now)
    }

    fn open_by(&self, hash: FlowHash, now: Ticks) -> Option<usize> {
        let [one, other] = &self.buckets;
        let claim = claim_flow_entry([(0, one), (1, other)], hash, &SETTINGS, now)?;
        let number = claim.at.bucket() as usize * BUCKET_ENTRIES + claim.at.entry_number();
        claim.publish(FlowState::SynSent as u32, now);
        Some(number)
    }

    fn tag(&self, number: usize) -> &FlowTag {
        &self.buckets[number / BUCKET_ENTRIES].tags[number % BUCKET_ENTRIES]
    }

    fn set(&self, number: usize, state: FlowState, seen: Ticks) {
        let tag = self.tag(number);
        tag.seen.store(seen.0);
        let word = EntryWord(tag.word.load());
        assert!(tag.word.replace(word.0, word.with_state(state as u32).0));
    }
}

fn hash_of(port: u16) -> FlowHash {
    FlowHash::of_client::<V4>(&Secret::new(2), Address4::from([192, 0, 2, 1]), port, 6)
}

fn seconds_ago(seconds: u32) -> Ticks {
    Ticks(NOW.0 - Ticks::in_seconds(seconds))
}

#[test]
fn the_first_bucket_fills_before_the_second_after_a_flows_own_entry() {
    let table = TwoBuckets::new();
    let own = hash_of(100).entry_number();
    let order: Vec<_> = (0..2 * BUCKET_ENTRIES)
        .map(|number| {
            let hash = if number == 0 { hash_of(100) } else { taken_way(&table, number) };
            table.open_by(hash, NOW).unwrap()
        })
        .collect();
    let mut expected: Vec<_> = (0..2 * BUCKET_ENTRIES).collect();
    expected.retain(|number| *number != own);
    expected.insert(0, own);
    assert_eq!(order, expected);
}

/// The hash of a client whose own entry is taken.
fn taken_way(table: &TwoBuckets, number: usize) -> FlowHash {
    (0..)
        .map(|port| hash_of(1000 * number as u16 + port))
        .find(|hash| !table.tag(hash.entry_number()).is_free())
        .expect("one of eight is taken")
}

#[test]
fn eight_flows_of_a_client_are_its_share() {
    let table = TwoBuckets::new();
    let [one, other] = &table.buckets;
    let buckets = [(0, one), (1, other)];
    for opened in 0..BUCKET_ENTRIES {
        assert!(!fills_its_share(&buckets, table.hash), "with {opened} flows");
        table.open(NOW);
    }
    assert!(fills_its_share(&buckets, table.hash));
    assert!(!fills_its_share(&buckets, hash_of(2)), "another client");

    let freed = find_at(one, Location::new(0, 0, 1), |_, _| Some(())).expect("a flow");
    freed.release();
    assert!(!fills_its_share(&buckets, table.hash), "a freed entry counts for no client");
}

#[test]
fn an_expired_flow_leaves_its_entry_to_the_flow_that_prefers_it() {
    use FlowState::{Established, Reset, SynSent, TimeWait};
    for (state, limit) in [(Reset, 10), (TimeWait, 60), (SynSent, 60), (Established, 86_400)] {
        let table = TwoBuckets::new();
        let own = table.open(seconds_ago(limit)).unwrap();
        table.set(own, state, seconds_ago(limit));
        assert_ne!(table.open(NOW), Some(own), "{state:?}: others are free");
        table.set(own, state, seconds_ago(limit + 1));
        assert_eq!(table.open(NOW), Some(own), "{state:?}");
    }
}

#[test]
fn established_and_half_closed_connections_are_never_evicted() {
    use FlowState::{Established, FinFromBackend, FinFromClient};
    for (state, idle) in [(Established, 86_400), (FinFromClient, 3_600), (FinFromBackend, 3_600)] {
        for alive in [0, idle / 2, idle] {
            let table = TwoBuckets::filled(state, seconds_ago(alive));
            assert_eq!(table.open(NOW), None, "{state:?} for {alive} s");
        }
        let table = TwoBuckets::filled(state, seconds_ago(idle + 2));
        assert!(table.open(NOW).is_some(), "{state:?} for more than {idle} s");
    }
}

/// Another CPU's clock may be ahead.
#[test]
fn a_flow_of_the_next_tick_is_alive() {
    let table = TwoBuckets::filled(FlowState::Established, Ticks(NOW.0 + 1));
    assert_eq!(table.open(NOW), None);
}

#[test]
fn a_free_entry_is_taken_before_a_reset_one_and_that_before_a_nascent_one() {
    let table = TwoBuckets::filled(FlowState::SynSent, seconds_ago(58));
    table.set(13, FlowState::Reset, NOW);
    table.set(6, FlowState::Free, NOW);
    assert_eq!(table.open(NOW), Some(6));
    assert_eq!(table.open(NOW), Some(13));
}

#[test]
fn the_unproven_flow_that_is_idle_for_longest_is_evicted() {
    let table = TwoBuckets::filled(FlowState::Established, NOW);
    table.set(3, FlowState::SynSent, seconds_ago(2));
    table.set(10, FlowState::Probation, seconds_ago(3));
    assert_eq!(table.open(NOW), Some(10));
    assert_eq!(table.open(NOW), Some(3));
}

#[test]
fn a_stream_outlives_nascent_flows_of_an_eighth_of_its_idle_time() {
    let table = TwoBuckets::filled(FlowState::Established, NOW);
    table.set(3, FlowState::SynSent, seconds_ago(2));
    table.set(10, FlowState::DatagramStream, seconds_ago(15));
    assert_eq!(table.open(NOW), Some(3));
    table.set(3, FlowState::SynSent, seconds_ago(2));
    table.set(10, FlowState::DatagramStream, seconds_ago(30));
    assert_eq!(table.open(NOW), Some(10));
}

/// Otherwise a table that has had many flows would have few in the core.
#[test]
fn an_expired_flow_of_the_first_bucket_is_replaced_before_a_free_entry_of_the_second_is_used() {
    let table = TwoBuckets::filled(FlowState::Established, NOW);
    (BUCKET_ENTRIES..2 * BUCKET_ENTRIES).for_each(|n| table.set(n, FlowState::Free, Ticks(0)));
    for (number, state) in [(2, FlowState::SynSent), (5, FlowState::Established)] {
        table.set(number, state, seconds_ago(86_400 + 120));
        assert_eq!(table.open(NOW), Some(number), "{state:?}");
    }
    assert_eq!(table.open(NOW), Some(BUCKET_ENTRIES));
}

#[test]
fn an_expired_flow_is_evicted_before_nascent_ones() {
    let table = TwoBuckets::filled(FlowState::SynSent, seconds_ago(58));
    table.set(9, FlowState::Established, seconds_ago(86_400 + 120));
    assert_eq!(table.open(NOW), Some(9));
}

#[test]
fn a_claimed_entry_is_never_taken() {
    let table = TwoBuckets::filled(FlowState::Claimed, seconds_ago(80_000));
    assert_eq!(table.open(NOW), None);
}
