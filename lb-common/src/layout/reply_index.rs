//! The index that finds flows by their replies.

use crate::atomic::{AtomicLong, AtomicWord};

/// How many entries share a bucket: they fill one cache line.
pub const REPLY_BUCKET_ENTRIES: usize = 8;

/// A set of the index that finds flows by their replies; `conntrack::reply_index` has the rules.
///
/// An entry is the location of a flow: fingerprint of the reply (28 bits, not 0), the flow's
/// generation (8), its entry in the bucket (4), and its bucket (24). 0 is free.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ReplyBucket {
    pub entries: [AtomicLong; REPLY_BUCKET_ENTRIES],
}

/// Hints that all CPUs share, of each family.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Hints {
    /// When a packet was last forwarded without an entry, in [`super::Ticks`]; 0: never.
    pub untracked: AtomicWord,
    /// 1 if flows begin in the rest of the flow table, and are looked for there first, because there
    /// are many. Otherwise 0.
    pub begins_in_rest: AtomicWord,
}

#[cfg(not(feature = "model"))]
const _: () = assert!(size_of::<ReplyBucket>() == 64);
#[cfg(not(feature = "model"))]
const _: () = assert!(size_of::<Hints>() == 8);
