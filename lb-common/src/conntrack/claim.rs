//! Claiming an entry for a new flow.

use super::entry::EntryWord;
use super::hops::Hops;
use super::table::Location;
use super::timeout::{eviction_rank, is_expired};
use crate::branchless::larger;
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{BUCKET_ENTRIES, Flow, FlowBucket, FlowEntry, FlowTag, Settings, Ticks};
use crate::verifier::opaque;

/// An entry that only this CPU may write, until it is published or abandoned.
///
/// Fields of eight bytes only: a function that returns one writes fields, and its caller reads words.
/// A CPU waits for a word that was written in part until all stores before it are done.
pub struct EntryClaim<'a, F: Family> {
    tag: &'a FlowTag,
    entry: &'a FlowEntry<F>,
    /// The tag's word.
    word: u64,
    pub at: Location,
}

impl<'a, F: Family> EntryClaim<'a, F> {
    #[inline(always)]
    pub fn write(&self, flow: &Flow<F>, track: u32) {
        // SAFETY: the claim makes this CPU the record's only writer; readers detect by the tag that
        // they copied an incomplete record.
        unsafe { self.entry.flow.write(flow) };
        self.entry.track.store(track);
    }

    /// Makes the flow visible, in a state.
    #[inline(always)]
    pub fn publish(self, state: u32, now: Ticks) -> Hops<'a> {
        self.tag.seen.store(now.0);
        self.hand_over(self.word().with_state(state));
        Hops::new(&self.entry.next_hops, self.at)
    }

    #[inline(always)]
    pub fn abandon(self) {
        self.hand_over(self.word().freed());
    }

    #[inline(always)]
    fn word(&self) -> EntryWord {
        EntryWord(self.word as u32)
    }

    /// No other CPU changes a claimed tag, so a store is sufficient. An exchange would wait until
    /// the record has been loaded from memory.
    #[inline(always)]
    fn hand_over(&self, word: EntryWord) {
        self.tag.word.store_after(word.0);
    }
}

/// Claims an entry for a new flow: the preferred entry of its hash if that is free or expired,
/// otherwise the entry with the highest rank in two buckets. `None`: all entries are protected, or
/// were taken by other CPUs meanwhile.
#[inline(always)]
pub fn claim_flow_entry<'a, F: Family>(
    buckets: [(u32, &'a FlowBucket<F>); 2],
    hash: FlowHash,
    settings: &Settings,
    now: Ticks,
) -> Option<EntryClaim<'a, F>> {
    let own = &buckets[0].1.tags[hash.entry_number()];
    let owner = EntryWord(own.word.load());
    let (chosen, second, number) = if owner.is_free() || is_expired(own, owner, settings, now) {
        (eviction_rank(own, owner, settings, now), 0, hash.entry_number())
    } else {
        highest_rank(&buckets, settings, now)?
    };
    // Before Linux 6.10 the verifier loses all bounds across `|` of two unknown scalars.
    let number = opaque(number as u64) as usize & (BUCKET_ENTRIES - 1);
    let (index, bucket) = if second == 0 { buckets[0] } else { buckets[1] };
    let (tag, entry) = (&bucket.tags[number], &bucket.entries[number]);
    // Meanwhile its flow may have become active, or another CPU may have begun one there: both rank
    // lower than what was chosen.
    let old = EntryWord(tag.word.load());
    if eviction_rank(tag, old, settings, now) < chosen {
        return None;
    }
    let word = old.claim(hash, number);
    // If another CPU is faster the new flow gets no entry: retries would be unbounded.
    if !tag.word.replace(old.0, word.0) {
        return None;
    }
    // As soon as possible: the store fetches the cache line, of IPv4 that of the record, while the flow
    // is prepared.
    entry.next_hops.forget();
    let at = Location::new(index, number as u32, word.generation());
    Some(EntryClaim { tag, entry, word: word.0.into(), at })
}

/// The entry of two buckets with the highest rank, the first one of several: its rank, its bucket, and
/// its number.
#[inline(always)]
fn highest_rank<F: Family>(
    buckets: &[(u32, &FlowBucket<F>); 2],
    settings: &Settings,
    now: Ticks,
) -> Option<(i64, usize, usize)> {
    // Rank and entry in one number: the verifier need not follow how each was chosen.
    let number = |bucket: usize, entry: usize| {
        let tag = &buckets[bucket].1.tags[entry];
        let rank = eviction_rank(tag, EntryWord(tag.word.load()), settings, now);
        rank << 4 | (LAST - (bucket * BUCKET_ENTRIES + entry)) as i64
    };
    // Of each bucket for itself, so that a CPU can compare in both at once.
    let (mut first, mut second) = (0, 0);
    for entry in 0..BUCKET_ENTRIES {
        first = larger(first, number(0, entry));
        second = larger(second, number(1, entry));
    }
    let best = larger(first, second);
    let place = LAST - (best as usize & LAST);
    let rank = best >> 4;
    (rank > 0).then_some((rank, place / BUCKET_ENTRIES, place % BUCKET_ENTRIES))
}

const LAST: usize = 2 * BUCKET_ENTRIES - 1;
