//! The fields of a tag's word.

use super::state::ALL;
use crate::hash::FlowHash;
use crate::layout::{BUCKET_ENTRIES, FlowState};

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EntryWord(pub u32);

impl EntryWord {
    const STATE: u32 = 0x1f;

    /// The tag of an entry's next owner.
    #[inline(always)]
    pub fn claim(self, hash: FlowHash, number: usize) -> Self {
        let generation = (self.0 + (1 << 8)) & 0xff00;
        let number = (number as u32) << 5;
        Self(hash.fingerprint() << 16 | generation | number | FlowState::Claimed as u32)
    }

    /// The number of the entry in its bucket. It is stored in the tag, so that the verifier sees
    /// one unknown number below 8, and follows the code after a lookup once instead of once for
    /// each entry.
    #[inline(always)]
    pub fn entry_number(self) -> usize {
        (self.0 >> 5) as usize & (BUCKET_ENTRIES - 1)
    }

    #[inline(always)]
    pub fn fingerprint(self) -> u32 {
        self.0 >> 16
    }

    /// Whether the entry may hold the flow with this hash.
    #[inline(always)]
    pub fn may_be(self, hash: FlowHash) -> bool {
        self.fingerprint() == hash.fingerprint() && self.holds_a_flow()
    }

    #[inline(always)]
    pub fn generation(self) -> u32 {
        (self.0 >> 8) & 0xff
    }

    #[inline(always)]
    pub fn state(self) -> FlowState {
        ALL[self.state_number() as usize]
    }

    #[inline(always)]
    pub fn state_number(self) -> u32 {
        self.0 & Self::STATE
    }

    #[inline(always)]
    pub fn holds_a_flow(self) -> bool {
        self.state_number() >= FlowState::SynSent as u32
    }

    #[inline(always)]
    pub fn is_free(self) -> bool {
        self.state_number() == FlowState::Free as u32
    }

    #[inline(always)]
    pub fn with_state(self, state: u32) -> Self {
        Self(self.0 & !Self::STATE | state & Self::STATE)
    }

    /// The tag of a released entry. Without a fingerprint, so that it is not counted for a client.
    #[inline(always)]
    pub fn freed(self) -> Self {
        Self(self.0 & 0xffe0 | FlowState::Free as u32)
    }

    /// Whether both have the same owner, in any state.
    #[inline(always)]
    pub fn same_owner(self, other: Self) -> bool {
        self.0 >> 8 == other.0 >> 8 && other.holds_a_flow()
    }
}
