//! Finding a place for a new flow.

use super::word::{Word, expired, rank};
use super::{Beginning, Place};
use crate::branchless::{larger, opaque};
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Flow, FlowBucket, FlowPlace, FlowState, FlowTag, Ticks, WAYS, Ways};

/// A place that this processor alone may write, until it is published or abandoned.
pub struct Claim<'a, F: Family> {
    tag: &'a FlowTag,
    place: &'a FlowPlace<F>,
    word: Word,
    pub at: Place,
}

impl<'a, F: Family> Claim<'a, F> {
    #[inline(always)]
    pub fn write(&self, flow: &Flow<F>) {
        // SAFETY: the claim makes this processor the record's only writer; readers notice by the
        // tag that what they copied was in the making.
        unsafe { *self.place.flow.get() = *flow };
        self.place.ways.forget();
    }

    /// The flow begins, as nascent.
    #[inline(always)]
    pub fn publish(self, now: Ticks) -> &'a Ways {
        self.tag.seen.store(now.0);
        self.hand_over(FlowState::Nascent);
        &self.place.ways
    }

    #[inline(always)]
    pub fn abandon(self) {
        self.hand_over(FlowState::Free);
    }

    /// Nobody else changes a claimed tag, so there is nothing to compare with. To exchange it would be
    /// to wait until the record, which nobody may have used for long, has come from memory.
    #[inline(always)]
    fn hand_over(&self, state: FlowState) {
        self.tag.word.store_after(self.word.with_state(state).0);
    }
}

/// Claims a place for a new flow: its own, if no flow is there that may still be met, else the best
/// of two buckets. `None` if every place is taken by a flow that may not be evicted, or by processors
/// that were faster.
#[inline(always)]
pub fn claim<'a, F: Family>(
    buckets: [(u32, &'a FlowBucket<F>); 2],
    hash: FlowHash,
    beginning: Beginning,
    now: Ticks,
) -> Option<Claim<'a, F>> {
    let own = &buckets[0].1.tags[hash.way()];
    let owner = Word(own.word.load());
    let (chosen, second, way) = if owner.is_free() || expired(own, owner, now) {
        (rank(own, owner, now), 0, hash.way())
    } else {
        best(&buckets, now)?
    };
    // What comes of joining the bits of two numbers is any number to verifiers before Linux 6.10.
    let way = opaque(way as u64) as usize & (WAYS - 1);
    let (index, bucket) = if second == 0 { buckets[0] } else { buckets[1] };
    let (tag, place) = (&bucket.tags[way], &bucket.places[way]);
    // Meanwhile its flow may have come to life, or another processor may have begun one there: either
    // ranks lower than what was chosen.
    let old = Word(tag.word.load());
    if rank(tag, old, now) < chosen {
        return None;
    }
    let word = old.claim(hash, way, beginning);
    // If another processor is faster the new flow is refused: trying again could be beaten again,
    // without bound, and its packet is sent again by whoever cares.
    tag.word.replace(old.0, word.0).then_some(Claim {
        tag,
        place,
        word,
        at: Place { bucket: index, way: way as u32, generation: word.generation() },
    })
}

/// The place of two buckets that is given most gladly: its rank, bucket and way.
#[inline(always)]
fn best<F: Family>(
    buckets: &[(u32, &FlowBucket<F>); 2],
    now: Ticks,
) -> Option<(i64, usize, usize)> {
    // Rank and place in one number: the verifier need not follow how each was chosen.
    let mut best = 0;
    for number in 0..2 * WAYS {
        let (bucket, way) = place(number);
        let tag = &buckets[bucket].1.tags[way];
        let rank = rank(tag, Word(tag.word.load()), now);
        best = larger(best, rank << 4 | (LAST_PLACE - number) as i64);
    }
    let (bucket, way) = place(LAST_PLACE - (best as usize & LAST_PLACE));
    (best >> 4 > 0).then_some((best >> 4, bucket, way))
}

const LAST_PLACE: usize = 2 * WAYS - 1;

/// The places of two buckets in the order in which they fill, each as bucket and way: half of the
/// first bucket, where packets look first, half of the other, and so on. So most flows are found in
/// their first bucket, and yet one is not full much before the other.
#[inline(always)]
fn place(number: usize) -> (usize, usize) {
    const HALF: usize = WAYS / 2;
    ((number / HALF) & 1, number % HALF + number / WAYS * HALF)
}

impl Ways {
    #[inline(always)]
    fn forget(&self) {
        self.hops.iter().for_each(|hop| hop.store(0));
    }
}
