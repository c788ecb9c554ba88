//! Making room for a new flow.

use super::entry::Word;
use super::hops::Hops;
use super::table::Location;
use super::timeout::{is_expired, rank};
use crate::branchless::{is_zero, larger, opaque};
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Flow, FlowBucket, FlowEntry, FlowState, FlowTag, Settings, Ticks, WAYS};

/// How many flows of one client's address and port share its two buckets: more of them go where client
/// and frontend lead to.
const CROWD: u64 = 8;

/// What came of looking for room.
pub enum Claimed<'a, F: Family> {
    Entry(Claim<'a, F>),
    /// The client's other flows have filled their share of its buckets.
    Crowded,
    /// All entries are protected, or were taken by processors that were faster.
    Full,
}

/// An entry that this processor alone may write, until it is published or abandoned.
pub struct Claim<'a, F: Family> {
    tag: &'a FlowTag,
    entry: &'a FlowEntry<F>,
    word: Word,
    pub at: Location,
}

impl<'a, F: Family> Claim<'a, F> {
    #[inline(always)]
    pub fn write(&self, flow: &Flow<F>, track: u32) {
        // SAFETY: the claim makes this processor the record's only writer; readers notice by the
        // tag that what they copied was in the making.
        unsafe { self.entry.flow.write(flow) };
        self.entry.track.store(track);
        self.entry.next_hops.forget();
    }

    /// The flow begins, in a state.
    #[inline(always)]
    pub fn publish(self, state: u32, now: Ticks) -> Hops<'a> {
        self.tag.seen.store(now.0);
        self.hand_over(state);
        Hops::new(&self.entry.next_hops, self.at)
    }

    #[inline(always)]
    pub fn abandon(self) {
        self.hand_over(FlowState::Free as u32);
    }

    /// No other CPU changes a claimed tag, so there is nothing to compare with. To exchange it would be
    /// to wait until the record, which may be in no cache, has come from memory.
    #[inline(always)]
    fn hand_over(&self, state: u32) {
        self.tag.word.store_after(self.word.with_state(state).0);
    }
}

/// Claims an entry for a new flow: the one that its hash names, if no flow is there that may still be
/// met, else the one of two buckets that ranks highest.
#[inline(always)]
pub fn claim<'a, F: Family>(
    buckets: [(u32, &'a FlowBucket<F>); 2],
    hash: FlowHash,
    settings: &Settings,
    now: Ticks,
) -> Claimed<'a, F> {
    let own = &buckets[0].1.tags[hash.way()];
    let owner = Word(own.word.load());
    let (chosen, second, way) = if owner.is_free() || is_expired(own, owner, settings, now) {
        (rank(own, owner, settings, now), 0, hash.way())
    } else {
        let best = best(&buckets, hash, settings, now);
        if best.crowd >= CROWD {
            return Claimed::Crowded;
        }
        if best.rank <= 0 {
            return Claimed::Full;
        }
        (best.rank, best.bucket, best.way)
    };
    // What comes of joining the bits of two numbers is any number to verifiers before Linux 6.10.
    let way = opaque(way as u64) as usize & (WAYS - 1);
    let (index, bucket) = if second == 0 { buckets[0] } else { buckets[1] };
    let (tag, entry) = (&bucket.tags[way], &bucket.entries[way]);
    // Meanwhile its flow may have come to life, or another processor may have begun one there: either
    // ranks lower than what was chosen.
    let old = Word(tag.word.load());
    if rank(tag, old, settings, now) < chosen {
        return Claimed::Full;
    }
    let word = old.claim(hash, way);
    // If another processor is faster the new flow gets no entry: trying again could be beaten again,
    // without bound.
    if !tag.word.replace(old.0, word.0) {
        return Claimed::Full;
    }
    let at = Location::new(index, way as u32, word.generation());
    Claimed::Entry(Claim { tag, entry, word, at })
}

/// The entry of two buckets that ranks highest.
struct Best {
    rank: i64,
    bucket: usize,
    way: usize,
    /// How many of both buckets' flows have the new one's fingerprint: flows of the same client.
    crowd: u64,
}

#[inline(always)]
fn best<F: Family>(
    buckets: &[(u32, &FlowBucket<F>); 2],
    hash: FlowHash,
    settings: &Settings,
    now: Ticks,
) -> Best {
    // Rank and entry in one number: the verifier need not follow how each was chosen.
    let mut best = 0;
    let mut crowd = 0;
    for number in 0..2 * WAYS {
        let (bucket, way) = place(number);
        let tag = &buckets[bucket].1.tags[way];
        let word = Word(tag.word.load());
        let rank = rank(tag, word, settings, now);
        best = larger(best, rank << 4 | (LAST_PLACE - number) as i64);
        crowd += is_zero(u64::from(word.fingerprint() ^ hash.fingerprint()))
            & (1 - is_zero(u64::from(word.state_number())));
    }
    let (bucket, way) = place(LAST_PLACE - (best as usize & LAST_PLACE));
    Best { rank: best >> 4, bucket, way, crowd }
}

const LAST_PLACE: usize = 2 * WAYS - 1;

/// The entries of two buckets in the order in which they fill, each as bucket and way: half of the
/// first bucket, where packets look first, half of the other, and so on. So most flows are found in
/// their first bucket, and yet one is not full much before the other.
#[inline(always)]
fn place(number: usize) -> (usize, usize) {
    const HALF: usize = WAYS / 2;
    ((number / HALF) & 1, number % HALF + number / WAYS * HALF)
}
