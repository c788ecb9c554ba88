//! Finding flows in buckets, and updating them.

use super::entry::EntryWord;
use super::hops::Hops;
use super::state;
use super::timeout::{eviction_rank, has_expired, is_expired};
use super::track::{self, Signal, Tracked};
use crate::branchless::is_zero;
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{
    BUCKET_ENTRIES, Direction, Flow, FlowBucket, FlowEntry, FlowState, FlowTag, Settings, Ticks,
};
use crate::verifier::apart;

/// A flow that was found, and the requested fields of its record.
pub struct LocatedFlow<'a, F: Family, R> {
    bucket: u32,
    tag: &'a FlowTag,
    word: EntryWord,
    entry: &'a FlowEntry<F>,
    pub record: R,
}

impl<'a, F: Family, R> LocatedFlow<'a, F, R> {
    #[inline(always)]
    pub fn state(&self) -> FlowState {
        self.word.state()
    }

    #[inline(always)]
    pub fn track(&self) -> u32 {
        self.entry.track.load()
    }

    /// Whether it has been idle for longer than its timeout.
    #[inline(always)]
    pub fn is_expired(&self, settings: &Settings, now: Ticks) -> bool {
        is_expired(self.tag, self.word, settings, now)
    }

    #[inline(always)]
    pub fn location(&self) -> Location {
        Location::new(self.bucket, self.word.entry_number() as u32, self.word.generation())
    }

    /// The next hops of its packets.
    #[inline(always)]
    pub fn hops(&self) -> Hops<'a> {
        Hops::new(&self.entry.next_hops, self.location())
    }

    /// Updates the flow for a packet: time, state and track. Returns false, and leaves the state, if the flow may end
    /// with the packet: a client's belongs to a later connection of the same addresses and ports, and this one is
    /// closed; a backend's refuses the connection.
    ///
    /// That is found where the state changes, so packets of established connections need no further test.
    #[inline(always)]
    #[must_use]
    pub fn note(&self, direction: Direction, protocol: u8, signal: &Signal, now: Ticks) -> bool {
        // Written only when it changes, so the cache line stays clean between two ticks.
        if self.tag.seen.load() != now.0 {
            self.tag.seen.store(now.0);
        }
        let state = self.word.state_number();
        let track = self.entry.track.load();
        let after =
            track::state_after_packet(Tracked { state, track }, direction, protocol, signal, now);
        // Exchanged, not stored: the entry may belong to another flow by now.
        if after.track != track {
            self.entry.track.replace(track, after.track);
        }
        if after.state == state {
            return true;
        }
        if after.state == FlowState::Free as u32 {
            return false;
        }
        if !self.tag.word.replace(self.word.0, self.word.with_state(after.state).0) {
            change_again(self.tag, self.word.0, direction as u32, after.event);
        }
        true
    }

    /// For how long the flow has been idle.
    #[inline(always)]
    pub fn idle_time(&self, now: Ticks) -> u32 {
        now.since(Ticks(self.tag.seen.load()))
    }

    /// Marks the connection, of which there is only a SYN, as reset; with `moves`, so that a repeated SYN moves to another
    /// backend ([`track::of_refused`]).
    #[inline(always)]
    pub fn refuse(&self, moves: bool) {
        if moves {
            let track = self.entry.track.load();
            self.entry.track.replace(track, track::of_refused(track));
        }
        self.tag.word.replace(self.word.0, self.word.with_state(FlowState::Reset as u32).0);
    }

    /// Leaves the connection, whose SYN was repeated, with its backend, as there is no other.
    #[inline(always)]
    pub fn keep_unserved(&self, now: Ticks) {
        self.tag.seen.store(now.0);
        if self.state() == FlowState::Reset {
            let track = self.entry.track.load();
            self.entry.track.replace(track, track::of_refused(track));
        }
    }

    /// Releases the entry.
    #[inline(always)]
    pub fn release(&self) {
        self.tag.word.replace(self.word.0, self.word.freed().0);
    }
}

/// Another CPU has changed the state at the same time, for example when both sides close at once:
/// applies the event to the current state. Returns whether it did.
///
/// In the kernel a global function, which the verifier checks once for all callers. So the pointer may
/// be null, direction and event may be any number, and there must be a result.
#[inline(never)]
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
extern "C" fn change_again(tag: *const FlowTag, word: u32, direction: u32, event: u32) -> u32 {
    const TRIES: usize = 3;
    // SAFETY: null, or a live tag.
    let Some(tag) = (unsafe { tag.as_ref() }) else { return 0 };
    let direction = if direction == 0 { Direction::Forward } else { Direction::Reverse };
    for _ in 0..TRIES {
        let current = EntryWord(tag.word.load());
        if !EntryWord(word).same_owner(current) {
            return 0;
        }
        let state = state::state_after(current.state_number(), direction, event);
        if state == current.state_number()
            || tag.word.replace(current.0, current.with_state(state).0)
        {
            return 1;
        }
    }
    0
}

/// Searches the first bucket of a hash, given with its number, for the flow that `wanted`
/// recognises by its record and state. `wanted` returns copies of the fields it needs.
#[inline(always)]
pub fn find_first<'a, F: Family, R>(
    (index, bucket): (u32, &'a FlowBucket<F>),
    hash: FlowHash,
    mut wanted: impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Option<LocatedFlow<'a, F, R>> {
    // Most flows are in their preferred entry. There record and tag are loaded from memory in
    // parallel.
    let number = hash.entry_number();
    let (tag, word) = tag_of(bucket, number);
    if word.may_be(hash)
        && let Some(found) = read_flow(index, tag, word, &bucket.entries[number], &mut wanted)
    {
        return Some(found);
    }
    find_entry_in_bucket((index, bucket), hash, wanted)
}

/// Searches any bucket for a flow as [`find_first`] does, without a preferred entry.
#[inline(always)]
pub fn find_entry_in_bucket<'a, F: Family, R>(
    (index, bucket): (u32, &'a FlowBucket<F>),
    hash: FlowHash,
    mut wanted: impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Option<LocatedFlow<'a, F, R>> {
    for tag in &bucket.tags {
        let word = EntryWord(tag.word.load());
        if !word.may_be(hash) {
            continue;
        }
        let tag = &bucket.tags[word.entry_number()];
        if let Some(found) =
            read_flow(index, tag, word, &bucket.entries[word.entry_number()], &mut wanted)
        {
            return Some(found);
        }
    }
    None
}

/// The tag of an entry, and its current word.
#[inline(always)]
fn tag_of<F: Family>(bucket: &FlowBucket<F>, number: usize) -> (&FlowTag, EntryWord) {
    let tag = &bucket.tags[number];
    (tag, EntryWord(tag.word.load()))
}

/// Reads the flow of an entry whose tag's word was `word`.
#[inline(always)]
fn read_flow<'a, F: Family, R>(
    bucket: u32,
    tag: &'a FlowTag,
    word: EntryWord,
    entry: &'a FlowEntry<F>,
    wanted: &mut impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Option<LocatedFlow<'a, F, R>> {
    // SAFETY: always initialised: maps start as zeros, and zeros are a valid `Flow`. In the
    // kernel another CPU may be writing the record; any bit pattern is a valid `Flow`, and the
    // copy is discarded unless the tag is unchanged. On the host a bucket is not `Sync`.
    let record = unsafe { entry.flow.read(|flow| wanted(flow, word.state())) }?;
    if !word.same_owner(EntryWord(tag.word.load())) {
        return None;
    }
    let word = EntryWord(apart(word.0.into()) as u32);
    Some(LocatedFlow { bucket, tag, word, entry, record })
}

/// The location of a flow in one word: bucket (24 bits), entry in the bucket (3), and generation of
/// the entry (8).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location(u64);

impl Location {
    /// Of no flow.
    pub const NONE: Self = Self(u64::MAX);

    #[inline(always)]
    pub fn new(bucket: u32, number: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(number) << 24 | u64::from(bucket))
    }

    #[inline(always)]
    pub fn bucket(self) -> u32 {
        self.0 as u32 & 0xff_ffff
    }

    #[inline(always)]
    pub fn entry_number(self) -> usize {
        (self.0 >> 24) as usize & (BUCKET_ENTRIES - 1)
    }

    #[inline(always)]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff
    }
}

/// Whether an entry with this word still holds the flow that a location was stored for.
#[inline(always)]
fn is_flow_at(word: EntryWord, location: Location) -> bool {
    word.generation() == location.generation() && word.holds_a_flow()
}

/// Reads the flow at a stored location, if it is still there.
#[inline(always)]
pub fn find_at<'a, F: Family, R>(
    bucket: &'a FlowBucket<F>,
    location: Location,
    mut wanted: impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Option<LocatedFlow<'a, F, R>> {
    let number = location.entry_number();
    let (tag, word) = tag_of(bucket, number);
    if !is_flow_at(word, location) {
        return None;
    }
    read_flow(location.bucket(), tag, word, &bucket.entries[number], &mut wanted)
}

/// The flow at a stored location, if it is still there, without its record.
#[inline(always)]
pub fn flow_at<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
) -> Option<LocatedFlow<'_, F, ()>> {
    let number = location.entry_number();
    let (tag, word) = tag_of(bucket, number);
    let entry = &bucket.entries[number];
    let found = LocatedFlow { bucket: location.bucket(), tag, word, entry, record: () };
    is_flow_at(word, location).then_some(found)
}

/// The next hops at a stored location. Their seals show whether they belong to the flow.
#[inline(always)]
pub fn hops_at<F: Family>(bucket: &FlowBucket<F>, location: Location) -> Hops<'_> {
    let entry = &bucket.entries[location.entry_number()];
    Hops::new(&entry.next_hops, location)
}

/// Whether the flow at a stored location is live: neither replaced nor expired.
#[inline(always)]
pub fn is_alive<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
    settings: &Settings,
    now: Ticks,
) -> bool {
    let (tag, word) = tag_of(bucket, location.entry_number());
    word.generation() == location.generation()
        && !word.is_free()
        && !is_expired(tag, word, settings, now)
}

/// 1 if the flow at a stored location is not live, else 0. Without branches, like
/// [`eviction_rank`](super::timeout::eviction_rank).
#[inline(always)]
pub fn is_gone<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
    settings: &Settings,
    now: Ticks,
) -> u64 {
    let (tag, word) = tag_of(bucket, location.entry_number());
    let same = is_zero(u64::from(word.generation() ^ location.generation()));
    let free = is_zero(u64::from(word.state_number() ^ FlowState::Free as u32));
    1 - same * (1 - free) * (1 - has_expired(tag, word, settings, now))
}

/// The eviction rank of the flow at a stored location; 0 or less if it is protected, or was replaced.
#[inline(always)]
pub fn rank_at<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
    settings: &Settings,
    now: Ticks,
) -> i64 {
    let (tag, word) = tag_of(bucket, location.entry_number());
    let is_there = is_flow_at(word, location);
    if is_there { eviction_rank(tag, word, settings, now) } else { 0 }
}

/// Releases the flow at a stored location unless it is protected; returns whether it did.
#[inline(always)]
pub fn evict_at<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
    settings: &Settings,
    now: Ticks,
) -> bool {
    let (tag, word) = tag_of(bucket, location.entry_number());
    let is_there = is_flow_at(word, location);
    // If its state changes meanwhile it stays.
    is_there
        && eviction_rank(tag, word, settings, now) > 0
        && tag.word.replace(word.0, word.freed().0)
}

/// Releases the flow at a stored location, if it is still there.
#[inline(always)]
pub fn release_at<F: Family>(bucket: &FlowBucket<F>, location: Location) {
    let (tag, word) = tag_of(bucket, location.entry_number());
    if is_flow_at(word, location) {
        tag.word.replace(word.0, word.freed().0);
    }
}

/// Releases the flow at a stored location if it has expired. Returns whether it is gone: false if it is live, or if its
/// state changes meanwhile.
#[inline(always)]
pub fn release_expired_at<F: Family>(
    bucket: &FlowBucket<F>,
    location: Location,
    settings: &Settings,
    now: Ticks,
) -> bool {
    let (tag, word) = tag_of(bucket, location.entry_number());
    word.generation() != location.generation()
        || word.is_free()
        || is_expired(tag, word, settings, now) && tag.word.replace(word.0, word.freed().0)
}
