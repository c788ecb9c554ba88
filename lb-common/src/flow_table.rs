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
//! Tests: `flow_table/tests.rs`, and the packet tables of the crate `tests`.

mod claim;
mod contents;
mod ticks;
mod word;

use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{Flow, FlowBucket, FlowPlace, FlowState, FlowTag, Ticks, WAYS, Ways};

pub use claim::{Claim, claim};
use word::{Word, expired};

/// What a flow's first packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// It asks for a connection.
    Dial,
    /// It is of a connection that this table does not know, or no more.
    Midway,
    Datagram,
}

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

    #[inline(always)]
    pub fn began_midway(&self) -> bool {
        self.word.began_midway()
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

#[cfg(test)]
mod tests;
