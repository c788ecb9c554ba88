//! Where a new flow's entry goes in an index whose entries lead to live flows, and to flows that are gone.

extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::entry::EntryWord;
use super::reply_index::{find_in_both, find_reply_location, insert_reply_location};
use super::{Environment, FlowTables, Location};
use crate::atomic::AtomicLong;
use crate::family::V4;
use crate::hash::{ReplyHash, Secret};
use crate::layout::{BUCKET_ENTRIES, FlowBucket, Hints, ReplyBucket, Settings, Ticks};

const NOW: Ticks = Ticks(1 << 28);

/// How many of the flows are live.
const LIVE: u64 = 6;

/// One bucket of flows, the first ones of which are live, and an index that leads to them.
struct IndexedBucket {
    settings: Settings,
    flows: FlowBucket<V4>,
    replies: Vec<ReplyBucket>,
}

impl Environment for IndexedBucket {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn now(&self) -> Ticks {
        NOW
    }
}

impl FlowTables<V4> for IndexedBucket {
    fn flow_mask(&self) -> u32 {
        0
    }

    fn flow_bucket(&self, _: u32) -> Option<&FlowBucket<V4>> {
        Some(&self.flows)
    }

    fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
        self.replies.get(index as usize)
    }

    fn crowded(&self, _: u32) -> Option<&AtomicLong> {
        None
    }

    fn crowded_lately(&self, _: u32) -> Option<&AtomicLong> {
        None
    }

    fn hints(&self) -> Option<&Hints> {
        None
    }
}

/// An entry of the index.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    has_fingerprint: bool,
    /// The number of its flow.
    flow: u64,
}

impl IndexEntry {
    fn word(self, hash: ReplyHash) -> u64 {
        let fingerprint = u64::from(hash.fingerprint());
        let fingerprint = if self.has_fingerprint { fingerprint } else { fingerprint ^ 1 };
        fingerprint << 36 | self.flow << 24
    }
}

fn is_live(word: u64) -> bool {
    word != 0 && word >> 24 & 0xf < LIVE
}

fn fits(word: u64, hash: ReplyHash) -> bool {
    word >> 36 == u64::from(hash.fingerprint())
}

impl IndexedBucket {
    /// An empty index for a number of buckets of flows.
    fn new(flow_buckets: u32) -> Self {
        let settings = Settings::new(7, flow_buckets);
        let replies = (0..=settings.reply_mask).map(|_| ReplyBucket::default()).collect();
        let table = Self { settings, flows: FlowBucket::default(), replies };
        table.flows.fill(NOW);
        for tag in &table.flows.tags[LIVE as usize..] {
            tag.word.store(EntryWord(tag.word.load()).freed().0);
        }
        table
    }

    fn fill(&self, entries: [Option<IndexEntry>; 32], hash: ReplyHash) {
        let slots = self.replies.iter().flat_map(|bucket| &bucket.entries);
        for (slot, entry) in slots.zip(entries) {
            slot.store(entry.map_or(0, |entry| entry.word(hash)));
        }
    }

    /// The entries of each bucket.
    fn words(&self) -> Vec<[u64; 8]> {
        let words = |bucket: &ReplyBucket| bucket.entries.each_ref().map(AtomicLong::load);
        self.replies.iter().map(words).collect()
    }
}

/// The hash of replies from a backend to an SNAT port.
fn hash_of(backend: u8, port: u16) -> ReplyHash {
    let (backend, node) = ([10, 0, 0, backend].into(), [10, 0, 1, 1].into());
    ReplyHash::of::<V4>(&Secret::new(7), (backend, 80), (node, port), 6)
}

/// A flow whose port cannot be changed is tried once.
#[test]
fn nearly_every_flow_of_a_full_table_has_an_entry() {
    const BUCKETS: u32 = 1 << 13;
    let table = IndexedBucket::new(BUCKETS);
    let (all, mut refused) = (BUCKETS * BUCKET_ENTRIES as u32, 0);
    for number in 0..all {
        let location = Location::new(0, number % LIVE as u32, 0);
        let hash = hash_of((number >> 14) as u8, (number & 0x3fff) as u16);
        refused += u32::from(!insert_reply_location(&table, hash, location, NOW));
    }
    std::println!("{refused} of {all} refused");
    assert!(refused * 500 < all, "{refused} of {all}");
}

fn entry() -> impl Strategy<Value = Option<IndexEntry>> {
    let entry = (prop::bool::weighted(0.04), 0..BUCKET_ENTRIES as u64);
    let entry = entry.prop_map(|(has_fingerprint, flow)| IndexEntry { has_fingerprint, flow });
    prop_oneof![1 => Just(None), 16 => entry.prop_map(Some)]
}

proptest! {
    #[test]
    fn a_flow_gets_the_best_entry_that_no_live_flow_has(
        entries in prop::array::uniform32(entry()), port: u16,
    ) {
        let (table, hash) = (IndexedBucket::new(2), hash_of(1, port));
        table.fill(entries, hash);
        let location = Location::new(0, 7, 1);
        let before = table.words();
        let inserted = insert_reply_location(&table, hash, location, NOW);
        let after = table.words();

        for (before, after) in before.iter().flatten().zip(after.iter().flatten()) {
            prop_assert!(before == after || !is_live(*before));
        }
        let [first, second] = hash.buckets(3).map(|bucket| bucket as usize);
        // Of a bucket without a free entry, the half with the preferred one is looked at.
        let [first_is_live, second_is_live] = [first, second].map(|bucket| {
            let mut half = (0..4).map(|number| before[bucket][number ^ hash.preferred_entry()]);
            half.all(is_live) && !before[bucket].contains(&0)
        });
        if !inserted {
            let equal = [first, second].map(|bucket| {
                before[bucket].iter().copied().filter(|word| fits(*word, hash)).collect::<Vec<_>>()
            });
            let one_has_several = equal.iter().any(|words| words.len() > 1);
            let is_lives = equal.iter().flatten().any(|word| is_live(*word));
            prop_assert!(is_lives || one_has_several || first_is_live && second_is_live);
            return Ok(());
        }
        prop_assert_eq!(find_reply_location(&table, hash), Some(location));
        prop_assert_eq!(find_in_both(&table, hash), Some(location));
        let own = [first, second].map(|bucket| after[bucket].iter().position(|word| fits(*word, hash)));
        let free = (0..8).filter(|number| before[first][*number] == 0);
        let nearest = free.min_by_key(|number| number ^ hash.preferred_entry());
        if before[first].iter().any(|word| fits(*word, hash)) {
            prop_assert!(own[0].is_some());
        } else if nearest.is_some() {
            prop_assert_eq!(own[0], nearest);
        } else {
            prop_assert!(first_is_live || own[0].is_some());
        }
        prop_assert!(own[0].is_none() || own[1].is_none());
    }
}
