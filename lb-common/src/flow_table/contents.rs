//! What is in a bucket: for the agent, people and tests.

use super::word::Word;
use crate::family::Family;
use crate::layout::{Flow, FlowBucket, FlowPlace, FlowState, FlowTag, Ticks, WAYS};

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
