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

use crate::branchless::{at_least_zero, larger, opaque};
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Flow, FlowBucket, FlowPlace, FlowState, FlowTag, Ticks, WAYS, Ways};

/// A tag's word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u32);

impl Word {
    /// Set for flows of protocols without connections, whose idle times are shorter.
    const DATAGRAM: u32 = 1 << 3;
    const STATE: u32 = 0x07;

    /// The tag of a place's next owner.
    #[inline(always)]
    fn claim(self, hash: FlowHash, way: usize, datagram: bool) -> Self {
        let generation = (self.0 + (1 << 8)) & 0xff00;
        let kind = if datagram { Self::DATAGRAM } else { 0 };
        let way = (way as u32) << 4;
        Self(hash.fingerprint() << 16 | generation | kind | way | FlowState::Claimed as u32)
    }

    /// Which place of the bucket this is the tag of. It stands in the tag, rather than in the
    /// loop that finds it, so that the verifier sees one unknown number below 8 and follows
    /// what comes of a found flow once instead of once for each place.
    #[inline(always)]
    fn way(self) -> usize {
        (self.0 >> 4) as usize & (WAYS - 1)
    }

    #[inline(always)]
    fn fingerprint(self) -> u32 {
        self.0 >> 16
    }

    /// Whether it may be the flow's that has this hash.
    #[inline(always)]
    fn may_be(self, hash: FlowHash) -> bool {
        self.fingerprint() == hash.fingerprint() && self.holds_a_flow()
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        (self.0 >> 8) & 0xff
    }

    #[inline(always)]
    fn class(self) -> &'static Class {
        &CLASSES[(self.0 & (Self::DATAGRAM | Self::STATE)) as usize]
    }

    #[inline(always)]
    fn state(self) -> FlowState {
        FlowState::from_low_bits(self.0)
    }

    #[inline(always)]
    fn holds_a_flow(self) -> bool {
        self.0 & Self::STATE >= FlowState::Nascent as u32
    }

    #[inline(always)]
    fn is_free(self) -> bool {
        self.0 & Self::STATE == FlowState::Free as u32
    }

    #[inline(always)]
    fn with_state(self, state: FlowState) -> Self {
        Self(self.0 & !Self::STATE | state as u32)
    }

    /// Whether both name the same owner, whatever its state.
    #[inline(always)]
    fn same_owner(self, other: Self) -> bool {
        self.0 >> 8 == other.0 >> 8 && other.holds_a_flow()
    }
}

impl FlowState {
    #[inline(always)]
    fn from_low_bits(bits: u32) -> Self {
        // SAFETY: the enum has a variant for each value of three bits.
        unsafe { core::mem::transmute::<u8, Self>(bits as u8 & 7) }
    }
}

impl Ticks {
    const fn seconds(seconds: u64) -> u32 {
        ((seconds * 1_000_000_000) >> 24) as u32
    }

    /// As a time span.
    #[inline(always)]
    pub fn in_seconds(seconds: u32) -> u32 {
        Self::seconds(seconds as u64)
    }

    #[inline(always)]
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self((nanoseconds >> 24) as u32)
    }

    /// For people; as a float, which BPF does not have.
    #[cfg(feature = "std")]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        f64::from(self.since(earlier)) * f64::from(1 << 24) / 1e9
    }

    /// How long ago that was. Another processor's clock may have been read a tick later: what is to
    /// come is not long ago.
    #[inline(always)]
    pub fn since(self, earlier: Self) -> u32 {
        at_least_zero(self.0.wrapping_sub(earlier.0))
    }
}

/// How a place is treated in one state; times are in ticks.
struct Class {
    /// How long the flow may be idle before it is as good as gone; below 2^31.
    idle_limit: u32,
    /// What a place has on others by its state. With the time that it has been idle it is how gladly
    /// the place is given to a new flow; if that is not above 0: not at all.
    bonus: i64,
}

/// By state, and by state of datagram flows.
static CLASSES: [Class; 16] = {
    const FREE: Class = Class { idle_limit: i32::MAX as u32, bonus: 1 << 33 };
    const CLAIMED: Class = Class { idle_limit: i32::MAX as u32, bonus: -(1 << 33) };
    /// What is closed goes before all that may live, unless that is over for long.
    const CLOSED: Class =
        Class { idle_limit: Ticks::seconds(30), bonus: Ticks::seconds(1000) as i64 };
    /// To be had at any time, the one that has waited longest first.
    const fn nascent(seconds: u64) -> Class {
        Class { idle_limit: Ticks::seconds(seconds), bonus: 0 }
    }
    /// To be had when its time is over.
    const fn kept(seconds: u64) -> Class {
        let idle_limit = Ticks::seconds(seconds);
        Class { idle_limit, bonus: -((idle_limit + TOLERANCE) as i64) }
    }
    [
        FREE,
        CLAIMED,
        nascent(60),  // Nascent
        nascent(60),  // Answered
        kept(86_400), // Established
        kept(3_600),  // ClosedForward
        kept(3_600),  // ClosedReverse
        CLOSED,
        // Datagrams:
        FREE,
        CLAIMED,
        nascent(30), // Nascent
        nascent(30), // Answered
        kept(180),   // Established
        CLAIMED,
        CLAIMED,
        CLAIMED,
    ]
};

/// Another processor's clock may be ahead by a tick; by so many it is still taken for that.
const TOLERANCE: u32 = 64;

/// A flow that was found: its tag, its ways out, and what the finder wanted of its record.
pub struct Found<'a, R> {
    tag: &'a FlowTag,
    word: Word,
    pub ways: &'a Ways,
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
        expired(self.tag, self.word, now)
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

#[inline(always)]
fn expired(tag: &FlowTag, word: Word, now: Ticks) -> bool {
    now.since(Ticks(tag.seen.load())) > word.class().idle_limit
}

/// Looks through one bucket for the flow that `wanted` recognises by its record and state.
/// `wanted` returns copies of the fields it needs.
#[inline(always)]
pub fn find<'a, F: Family, R>(
    bucket: &'a FlowBucket<F>,
    hash: FlowHash,
    wanted: impl Fn(&Flow<F>, FlowState) -> Option<R>,
) -> Option<Found<'a, R>> {
    // Most flows are where they were meant to be. There the record need not wait for its tag, nor
    // the tag for others: from memory both come at once.
    let way = hash.way();
    let tag = &bucket.tags[way];
    let word = Word(tag.word.load());
    if word.may_be(hash)
        && let Some(found) = read(tag, word, &bucket.places[way], &wanted)
    {
        return Some(found);
    }
    for tag in &bucket.tags {
        let word = Word(tag.word.load());
        if !word.may_be(hash) {
            continue;
        }
        let tag = &bucket.tags[word.way()];
        if let Some(found) = read(tag, word, &bucket.places[word.way()], &wanted) {
            return Some(found);
        }
    }
    None
}

/// Reads the flow at a place whose tag's word was `word`.
#[inline(always)]
fn read<'a, F: Family, R>(
    tag: &'a FlowTag,
    word: Word,
    place: &'a FlowPlace<F>,
    wanted: &impl Fn(&Flow<F>, FlowState) -> Option<R>,
) -> Option<Found<'a, R>> {
    // SAFETY: always initialised: maps start as zeros, and zeros are a valid `Flow`. In the
    // kernel another processor may be writing the record; any bit pattern is a valid `Flow`,
    // and what was read is discarded unless the tag says that nothing changed. On the host a
    // bucket is not `Sync`.
    let record = wanted(unsafe { &*place.flow.get() }, word.state())?;
    let unchanged = word.same_owner(Word(tag.word.load()));
    unchanged.then_some(Found { tag, word, ways: &place.ways, record })
}

/// Where a flow is, as the index of answers notes it: 4 bits of way, 8 of generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub bucket: u32,
    pub way: u32,
    pub generation: u32,
}

/// Looks at one place for the flow that was there when it was noted.
#[inline(always)]
pub fn find_at<'a, F: Family, R>(
    bucket: &'a FlowBucket<F>,
    place: Place,
    wanted: impl Fn(&Flow<F>, FlowState) -> Option<R>,
) -> Option<Found<'a, R>> {
    let way = place.way as usize & (WAYS - 1);
    let tag = &bucket.tags[way];
    let word = Word(tag.word.load());
    if word.generation() != place.generation || !word.holds_a_flow() {
        return None;
    }
    read(tag, word, &bucket.places[way], &wanted)
}

/// Whether the flow that was noted may still be met: neither replaced nor idle for too long.
#[inline(always)]
pub fn is_alive<F: Family>(bucket: &FlowBucket<F>, place: Place, now: Ticks) -> bool {
    let tag = &bucket.tags[place.way as usize & (WAYS - 1)];
    let word = Word(tag.word.load());
    word.generation() == place.generation && !word.is_free() && !expired(tag, word, now)
}

/// Gives up the place of the flow that was noted, if it is still there.
#[inline(always)]
pub fn release_at<F: Family>(bucket: &FlowBucket<F>, place: Place) {
    let tag = &bucket.tags[place.way as usize & (WAYS - 1)];
    let word = Word(tag.word.load());
    if word.generation() == place.generation && word.holds_a_flow() {
        tag.word.replace(word.0, word.with_state(FlowState::Free).0);
    }
}

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
        // Nobody else changes a claimed tag.
        self.tag.word.replace(self.word.0, self.word.with_state(FlowState::Nascent).0);
        &self.place.ways
    }

    #[inline(always)]
    pub fn abandon(self) {
        self.tag.word.replace(self.word.0, self.word.with_state(FlowState::Free).0);
    }
}

/// Claims a place for a new flow: its own, if no flow is there that may still be met, else the best
/// of two buckets. `None` if every place is taken by a flow that may not be evicted, or by processors
/// that were faster.
#[inline(always)]
pub fn claim<'a, F: Family>(
    buckets: [(u32, &'a FlowBucket<F>); 2],
    hash: FlowHash,
    datagram: bool,
    now: Ticks,
) -> Option<Claim<'a, F>> {
    let own = &buckets[0].1.tags[hash.way()];
    let owner = Word(own.word.load());
    let (second, way) = if owner.is_free() || expired(own, owner, now) {
        (0, hash.way())
    } else {
        best(&buckets, now)?
    };
    // What comes of joining the bits of two numbers is any number to verifiers before Linux 6.10.
    let way = opaque(way as u64) as usize & (WAYS - 1);
    let (index, bucket) = if second == 0 { buckets[0] } else { buckets[1] };
    let (tag, place) = (&bucket.tags[way], &bucket.places[way]);
    // Ranked as it stands now: meanwhile its flow may have come to life.
    let old = Word(tag.word.load());
    if rank(tag, now) <= 0 {
        return None;
    }
    let word = old.claim(hash, way, datagram);
    // If another processor is faster the new flow is refused: trying again could be beaten again,
    // without bound, and its packet is sent again by whoever cares.
    tag.word.replace(old.0, word.0).then_some(Claim {
        tag,
        place,
        word,
        at: Place { bucket: index, way: way as u32, generation: word.generation() },
    })
}

/// The place of two buckets that is given most gladly, as bucket and way.
#[inline(always)]
fn best<F: Family>(buckets: &[(u32, &FlowBucket<F>); 2], now: Ticks) -> Option<(usize, usize)> {
    // Rank and place in one number: the verifier need not follow how each was chosen.
    let mut best = 0;
    for number in 0..2 * WAYS {
        let (bucket, way) = place(number);
        let rank = rank(&buckets[bucket].1.tags[way], now);
        best = larger(best, rank << 4 | (LAST_PLACE - number) as i64);
    }
    (best >> 4 > 0).then(|| place(LAST_PLACE - (best as usize & LAST_PLACE)))
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

/// How gladly a place is given to a new flow; if not above 0: not at all. Without branches, of which
/// the verifier would follow every combination over the ways.
#[inline(always)]
fn rank(tag: &FlowTag, now: Ticks) -> i64 {
    let idle = now.0.wrapping_add(TOLERANCE).wrapping_sub(tag.seen.load());
    Word(tag.word.load()).class().bonus + i64::from(idle)
}

impl Ways {
    #[inline(always)]
    fn forget(&self) {
        self.hops.iter().for_each(|hop| hop.store(0));
    }
}

impl FlowTag {
    pub fn is_free(&self) -> bool {
        !Word(self.word.load()).holds_a_flow()
    }
}

/// The flow at a place, if there is one and nobody is changing it.
fn copy<F: Family>(tag: &FlowTag, place: &FlowPlace<F>) -> Option<(Word, Flow<F>)> {
    let word = Word(tag.word.load());
    if !word.holds_a_flow() {
        return None;
    }
    // SAFETY: initialised, see `read`. The kernel may write it meanwhile if this is a mapped map:
    // any pattern is valid, the read is volatile, and discarded below.
    let flow = unsafe { place.flow.get().read_volatile() };
    let unchanged = word.same_owner(Word(tag.word.load()));
    unchanged.then_some((word, flow))
}

impl<F: Family> FlowBucket<F> {
    /// Ends the datagram flows that are `meant`; says how many.
    pub fn end_datagrams(&self, meant: impl Fn(&Flow<F>) -> bool) -> usize {
        let ends = |(tag, place): &(&FlowTag, &FlowPlace<F>)| {
            while let Some((word, flow)) = copy(tag, place) {
                if word.0 & Word::DATAGRAM == 0 || !meant(&flow) {
                    return false;
                }
                // Else a packet has come meanwhile, and the state is another: once more.
                if tag.word.replace(word.0, word.with_state(FlowState::Free).0) {
                    return true;
                }
            }
            false
        };
        self.tags.iter().zip(&self.places).filter(ends).count()
    }

    /// The states of what is in the bucket, without a look at the records.
    pub fn states(&self) -> impl Iterator<Item = FlowState> + '_ {
        let words = self.tags.iter().map(|tag| Word(tag.word.load()));
        words.filter(|word| word.holds_a_flow()).map(Word::state)
    }

    /// What is in the bucket, for people and tests: state, when last seen, the record.
    pub fn entries(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<F>)> + '_ {
        (0..WAYS).filter_map(|way| self.entry(way))
    }

    /// The same of one of its ways.
    pub fn entry(&self, way: usize) -> Option<(FlowState, Ticks, Flow<F>)> {
        let tag = self.tags.get(way)?;
        let (word, flow) = copy(tag, &self.places[way])?;
        Some((word.state(), Ticks(tag.seen.load()), flow))
    }
}

#[cfg(test)]
mod tests;
