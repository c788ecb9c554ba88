//! The flow table: one record per connection, found from both directions.
//!
//! A flow lives in one of two buckets, chosen by its client's end, which the packets of both
//! directions carry. So there is nothing that could be evicted apart.
//!
//! # Invariants
//! - A record is read only between two equal readings of its tag (`generation` moves on with
//!   every owner), and written only by the processor that claimed its tag.
//! - A new flow never takes the place of an established one that is alive: only free, expired,
//!   closed and nascent places are for the taking. A flood of SYNs evicts nascent flows only.
//!
//! The rules are plain code over memory, the same on the host and in the kernel.
//! Tests: below, and the packet tables of the crate `tests`.

use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Flow, FlowBucket, FlowState, FlowTag, Ticks};

/// A tag's word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u32);

impl Word {
    /// Set for flows of protocols without connections, whose idle times are shorter.
    const DATAGRAM: u32 = 1 << 7;
    const STATE: u32 = 0x7f;

    /// The tag of a place's next owner.
    #[inline(always)]
    fn claim(self, hash: FlowHash, datagram: bool) -> Self {
        let generation = (self.0 + (1 << 8)) & 0xff00;
        let kind = if datagram { Self::DATAGRAM } else { 0 };
        Self(hash.fingerprint() << 16 | generation | kind | FlowState::Claimed as u32)
    }

    #[inline(always)]
    fn fingerprint(self) -> u32 {
        self.0 >> 16
    }

    #[inline(always)]
    fn datagram(self) -> bool {
        self.0 & Self::DATAGRAM != 0
    }

    #[inline(always)]
    fn state(self) -> FlowState {
        FlowState::from_low_bits(self.0)
    }

    #[inline(always)]
    fn with_state(self, state: FlowState) -> Self {
        Self(self.0 & !Self::STATE | state as u32)
    }

    /// Whether both name the same owner, whatever its state.
    #[inline(always)]
    fn same_owner(self, other: Self) -> bool {
        self.0 >> 8 == other.0 >> 8 && other.state() as u32 >= FlowState::Nascent as u32
    }
}

impl FlowState {
    #[inline(always)]
    fn from_low_bits(bits: u32) -> Self {
        match bits & 7 {
            0 => Self::Free,
            1 => Self::Claimed,
            2 => Self::Nascent,
            3 => Self::Answered,
            4 => Self::Established,
            5 => Self::ClosedForward,
            6 => Self::ClosedReverse,
            _ => Self::Closed,
        }
    }

    #[inline(always)]
    fn holds_a_flow(self) -> bool {
        self as u32 >= Self::Nascent as u32
    }
}

impl Ticks {
    const fn seconds(seconds: u64) -> u32 {
        (seconds * 1_000_000_000 >> 24) as u32
    }

    #[inline(always)]
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self((nanoseconds >> 24) as u32)
    }

    #[inline(always)]
    fn since(self, earlier: u32) -> u32 {
        self.0.wrapping_sub(earlier)
    }
}

/// How long a flow may be idle before its place may be taken, in ticks.
#[inline(always)]
fn idle_limit(word: Word) -> u32 {
    if word.datagram() {
        return match word.state() {
            FlowState::Established => Ticks::seconds(180),
            _ => Ticks::seconds(30),
        };
    }
    match word.state() {
        FlowState::Established => Ticks::seconds(86_400),
        FlowState::ClosedForward | FlowState::ClosedReverse => Ticks::seconds(3_600),
        FlowState::Closed => Ticks::seconds(30),
        _ => Ticks::seconds(60),
    }
}

/// A flow that was found: its tag, and what the finder wanted of its record.
pub struct Found<'a, R> {
    tag: &'a FlowTag,
    word: Word,
    pub record: R,
}

impl<R> Found<'_, R> {
    #[inline(always)]
    pub fn state(&self) -> FlowState {
        self.word.state()
    }

    /// Whether nothing was seen of it for longer than its state allows.
    #[inline(always)]
    pub fn expired(&self, now: Ticks) -> bool {
        now.since(self.tag.seen.load()) > idle_limit(self.word)
    }

    /// Notes a packet: when it came and what it makes of the flow. A processor that is beaten to
    /// the change leaves it: the next packet tries again.
    #[inline(always)]
    pub fn touch(&self, now: Ticks, state: FlowState) {
        // Written only when it changes: the line stays clean between two ticks.
        if self.tag.seen.load() != now.0 {
            self.tag.seen.store(now.0);
        }
        if state != self.state() {
            self.tag.word.replace(self.word.0, self.word.with_state(state).0);
        }
    }

    /// Gives the place up.
    #[inline(always)]
    pub fn release(&self) {
        self.tag.word.replace(self.word.0, self.word.with_state(FlowState::Free).0);
    }
}

/// Looks through one bucket for the flow that `wanted` recognises. `wanted` returns copies of
/// the fields it needs.
#[inline(always)]
pub fn find<'a, F: Family, R>(
    bucket: &'a FlowBucket<F>,
    hash: FlowHash,
    wanted: impl Fn(&Flow<F>) -> Option<R>,
) -> Option<Found<'a, R>> {
    for (tag, record) in bucket.tags.iter().zip(&bucket.flows) {
        let word = Word(tag.word.load());
        if word.fingerprint() != hash.fingerprint() || !word.state().holds_a_flow() {
            continue;
        }
        // SAFETY: always initialised: maps start as zeros, and zeros are a valid `Flow`. In the
        // kernel another processor may be writing the record; any bit pattern is a valid
        // `Flow`, and what was read is discarded unless the tag says that nothing changed. On
        // the host a bucket is not `Sync`.
        let found = wanted(unsafe { &*record.get() });
        if let Some(record) = found
            && word.same_owner(Word(tag.word.load()))
        {
            return Some(Found { tag, word, record });
        }
    }
    None
}

/// Stores a new flow in one bucket, as nascent; false if every place is taken by a flow that may not be
/// evicted.
#[inline(always)]
pub fn insert<F: Family>(
    bucket: &FlowBucket<F>,
    hash: FlowHash,
    flow: &Flow<F>,
    datagram: bool,
    now: Ticks,
) -> bool {
    let mut best = 0;
    let mut best_rank = 0;
    for (way, tag) in bucket.tags.iter().enumerate() {
        let rank = eviction_rank(tag, now);
        if rank > best_rank {
            best = way;
            best_rank = rank;
        }
    }
    if best_rank == 0 {
        return false;
    }
    // The bound is for the verifier.
    let Some((tag, record)) = bucket.tags.get(best).zip(bucket.flows.get(best)) else {
        return false;
    };

    let old = Word(tag.word.load());
    let claimed = old.claim(hash, datagram);
    if !tag.word.replace(old.0, claimed.0) {
        // Another processor was faster. Trying again could be beaten again, without bound; the
        // caller still has the other bucket.
        return false;
    }
    // SAFETY: the claim makes this processor the record's only writer; readers notice by the
    // tag that what they copied was in the making.
    unsafe { *record.get() = *flow };
    tag.seen.store(now.0);
    // Nobody else changes a claimed tag.
    tag.word.replace(claimed.0, claimed.with_state(FlowState::Nascent).0)
}

/// How gladly a place is given to a new flow; 0: not at all. Higher is better.
#[inline(always)]
fn eviction_rank(tag: &FlowTag, now: Ticks) -> u32 {
    const FREE: u32 = u32::MAX;
    const EXPIRED: u32 = u32::MAX - 1;
    const CLOSED: u32 = u32::MAX - 2;

    let word = Word(tag.word.load());
    let state = word.state();
    let idle = now.since(tag.seen.load());
    match state {
        FlowState::Free => FREE,
        FlowState::Claimed => 0,
        _ if idle > idle_limit(word) => EXPIRED,
        FlowState::Closed => CLOSED,
        // The one that has waited longest; at least 1.
        FlowState::Nascent | FlowState::Answered => 1 + idle,
        _ => 0,
    }
}

impl<F: Family> FlowBucket<F> {
    /// What is in the bucket, for people and tests: state, when last seen, the record.
    pub fn entries(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<F>)> + '_ {
        self.tags.iter().zip(&self.flows).filter_map(|(tag, record)| {
            let word = Word(tag.word.load());
            // SAFETY: initialised, see `find`. The kernel may write it meanwhile if this is a
            // mapped map: any pattern is valid, the read is volatile, and discarded below.
            let flow = unsafe { record.get().read_volatile() };
            let unchanged = word.same_owner(Word(tag.word.load()));
            (word.state().holds_a_flow() && unchanged)
                .then(|| (word.state(), Ticks(tag.seen.load()), flow))
        })
    }
}
