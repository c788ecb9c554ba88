//! Contents of buckets, for the agent, commands and tests.

use super::entry::EntryWord;
use super::state::is_datagram;
use super::timeout::{eviction_rank, is_expired};
use crate::family::Family;
use crate::layout::{
    BUCKET_ENTRIES, Flow, FlowBucket, FlowEntry, FlowState, FlowTag, Settings, Ticks,
};

impl FlowTag {
    pub fn is_free(&self) -> bool {
        !EntryWord(self.word.load()).holds_a_flow()
    }
}

/// The flow of an entry, unless it is empty or being written.
fn copy_flow<F: Family>(tag: &FlowTag, entry: &FlowEntry<F>) -> Option<(EntryWord, Flow<F>)> {
    let word = EntryWord(tag.word.load());
    if !word.holds_a_flow() {
        return None;
    }
    // SAFETY: initialised, see `read`. The kernel may write it meanwhile if this is a mapped map:
    // any pattern is valid, the read is volatile, and its result is discarded below.
    let flow = unsafe { entry.flow.copy() };
    let unchanged = word.same_owner(EntryWord(tag.word.load()));
    unchanged.then_some((word, flow))
}

impl<F: Family> FlowBucket<F> {
    /// Ends the datagram flows that are `meant`. Returns their number.
    pub fn end_datagrams(&self, meant: impl Fn(&Flow<F>) -> bool) -> usize {
        let ends = |(tag, entry): &(&FlowTag, &FlowEntry<F>)| {
            while let Some((word, flow)) = copy_flow(tag, entry) {
                if !is_datagram(word.state_number()) || !meant(&flow) {
                    return false;
                }
                // Otherwise a packet has changed the state meanwhile: try again.
                if tag.word.replace(word.0, word.freed().0) {
                    return true;
                }
            }
            false
        };
        self.tags.iter().zip(&self.entries).filter(ends).count()
    }

    /// The states of the flows in the bucket, without reading their records.
    pub fn states(&self) -> impl Iterator<Item = FlowState> + '_ {
        let words = self.tags.iter().map(|tag| EntryWord(tag.word.load()));
        words.filter(|word| word.holds_a_flow()).map(EntryWord::state)
    }

    /// The states of the flows that no new flow may replace.
    pub fn protected<'a>(
        &'a self,
        settings: &'a Settings,
        now: Ticks,
    ) -> impl Iterator<Item = FlowState> + 'a {
        let tags = self.tags.iter().map(|tag| (tag, EntryWord(tag.word.load())));
        tags.filter(move |(tag, word)| {
            word.holds_a_flow() && eviction_rank(tag, *word, settings, now) <= 0
        })
        .map(|(_, word)| word.state())
    }

    /// How many flows in the bucket have not expired.
    pub fn living(&self, settings: &Settings, now: Ticks) -> u32 {
        let words = self.tags.iter().map(|tag| (tag, EntryWord(tag.word.load())));
        let living = words
            .filter(|(tag, word)| word.holds_a_flow() && !is_expired(tag, *word, settings, now));
        living.count() as u32
    }

    /// The flows in the bucket: state, when last seen, record.
    pub fn entries(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<F>)> + '_ {
        (0..BUCKET_ENTRIES).filter_map(|number| self.entry(number))
    }

    /// The flow of the entry with this number.
    pub fn entry(&self, number: usize) -> Option<(FlowState, Ticks, Flow<F>)> {
        let tag = self.tags.get(number)?;
        let (word, flow) = copy_flow(tag, &self.entries[number])?;
        Some((word.state(), Ticks(tag.seen.load()), flow))
    }

    /// For how long each datagram flow has existed, for tests.
    pub fn datagram_ages(&self, now: Ticks) -> impl Iterator<Item = u32> + '_ {
        let datagrams = self.tags.iter().zip(&self.entries).filter(|(tag, _)| {
            let word = EntryWord(tag.word.load());
            word.holds_a_flow() && is_datagram(word.state_number())
        });
        datagrams.map(move |(_, entry)| now.since(Ticks(entry.track.load())))
    }

    /// Makes every free entry a flow that no new flow may replace, for tests. No packet finds it.
    pub fn fill(&self, now: Ticks) {
        for (number, tag) in self.tags.iter().enumerate().filter(|(_, tag)| tag.is_free()) {
            tag.seen.store(now.0);
            tag.word
                .store(EntryWord((number as u32) << 5).with_state(FlowState::Established as u32).0);
        }
    }

    /// Makes all flows in the bucket older by a number of ticks, for tests.
    pub fn grow_older(&self, ticks: u32) {
        for (tag, entry) in self.tags.iter().zip(&self.entries) {
            tag.seen.store(tag.seen.load().wrapping_sub(ticks));
            let state = EntryWord(tag.word.load()).state_number();
            if is_datagram(state) {
                entry.track.store(entry.track.load().wrapping_sub(ticks));
            } else if super::state::keeps_time(state) {
                entry.track.store(entry.track.load().wrapping_sub(ticks >> 8 << 16));
            }
        }
    }
}
