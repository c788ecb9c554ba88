//! What connection tracking requires of the tables.

use crate::atomic::AtomicLong;
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{FlowBucket, Hints, ReplyBucket, Settings, Ticks};

/// What all lookups require.
pub trait Environment {
    fn settings(&self) -> &Settings;
    fn now(&self) -> Ticks;
}

/// The flow tables of an address family.
pub trait FlowTables<F: Family>: Environment {
    /// Number of flow buckets less one.
    fn flow_mask(&self) -> u32;
    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<F>>;
    fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket>;
    /// A word of the bits that mark clients with flows in other buckets than their own.
    fn crowded(&self, word: u32) -> Option<&AtomicLong>;
    /// A word of the bits of [`Self::crowded`] that were set, or found set, since the agent last began to clear
    /// those that no flow needs.
    fn crowded_lately(&self, word: u32) -> Option<&AtomicLong>;
    fn hints(&self) -> Option<&Hints>;

    /// The bucket in which a flow with this hash is looked for first, and the other one.
    #[inline(always)]
    fn buckets_of(&self, hash: FlowHash) -> [u32; 2] {
        let [core, rest] = hash.buckets(self.flow_mask());
        let begins_in_rest = self.hints().is_some_and(|hints| hints.begins_in_rest.load() != 0);
        if begins_in_rest { [rest, core] } else { [core, rest] }
    }
}
