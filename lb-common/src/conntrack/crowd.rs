//! Flows that are not in the buckets of their client.
//!
//! A client's address and port, which packets in both directions carry, select two buckets for its
//! flows. If established connections have all entries of both, or if the client has used up its
//! share of them, like a resolver that queries thousands of Services from one socket, client and
//! frontend select two other buckets, and two more if established connections have all entries of
//! those. Requests are found there by these hashes, replies by the reply index. A bit for each
//! client says whether this may be so, which saves most other clients the lookup; clients share
//! bits, of which there are as many as entries. The agent clears bits that no flow needs any more,
//! in three steps:
//!
//! 1. [`forget_lately`] for every word.
//! 2. It waits until every program has ended that ran then, reads all flows, and sets the bit of each
//!    that is not in its client's buckets ([`bit_of`]) in words of its own.
//! 3. [`clear_stale`] for every word.
//!
//! # Invariant
//! A flow in other buckets has its bit set from before it is published until it ends, except for the
//! few instructions of [`clear_stale`] between the two exchanges.

use super::entry::EntryWord;
use super::tables::FlowTables;
use crate::atomic::AtomicLong;
use crate::branchless::is_zero;
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::{BUCKET_ENTRIES, FlowBucket};

/// The most flows of one client's address and port in its two buckets.
const SHARE: u64 = 8;

/// Whether the client's flows have used up their share of its buckets.
#[inline(always)]
pub fn fills_its_share<F: Family>(buckets: &[(u32, &FlowBucket<F>); 2], client: FlowHash) -> bool {
    let mut count = 0;
    for (_, bucket) in buckets {
        for tag in &bucket.tags {
            let word = EntryWord(tag.word.load());
            // Freed entries have no fingerprint.
            count += is_zero(u64::from(word.fingerprint() ^ client.fingerprint()));
        }
    }
    count >= SHARE
}

/// Whether flows of this client may be in other buckets than those of its address and port.
#[inline(always)]
pub fn is_crowded<F: Family, T: FlowTables<F>>(tables: &T, client: FlowHash) -> bool {
    let (word, bit) = bit_of(client, tables.flow_mask());
    tables.crowded(word).is_some_and(|word| word.load() & bit != 0)
}

/// Sets the bit before the first such flow is stored; false if other CPUs were always faster.
#[inline(always)]
pub fn set_crowded<F: Family, T: FlowTables<F>>(tables: &T, client: FlowHash) -> bool {
    let (word, bit) = bit_of(client, tables.flow_mask());
    // In this order: the agent clears a bit before it reads for the last time which were set lately.
    set_crowd_bit(tables.crowded_lately(word), bit) && set_crowd_bit(tables.crowded(word), bit)
}

#[inline(always)]
fn set_crowd_bit(word: Option<&AtomicLong>, bit: u64) -> bool {
    const TRIES: usize = 4;
    let Some(word) = word else { return false };
    for _ in 0..TRIES {
        let old = word.load();
        if old & bit != 0 || word.replace(old, old | bit) {
            return true;
        }
    }
    false
}

/// Forgets which bits were set lately.
pub fn forget_lately(lately: &AtomicLong) {
    lately.store(0);
}

/// Clears the bits of a word that no flow needs, and returns how many.
pub fn clear_stale(crowded: &AtomicLong, lately: &AtomicLong, needed: u64) -> u32 {
    let stale = loop {
        let old = crowded.load();
        let stale = old & !(needed | lately.load());
        if stale == 0 {
            return 0;
        }
        if crowded.replace(old, old & !stale) {
            break stale;
        }
    };
    // A CPU that found its bit still set has set the other one before.
    let used = stale & lately.load();
    loop {
        let old = crowded.load();
        if used == 0 || crowded.replace(old, old | used) {
            break;
        }
    }
    (stale & !used).count_ones()
}

/// The number of bits for a flow table with so many buckets.
pub const fn crowded_bits(buckets: u32) -> u32 {
    buckets * BUCKET_ENTRIES as u32
}

/// The number of words with these bits.
pub const fn crowded_words(buckets: u32) -> u32 {
    crowded_bits(buckets).div_ceil(64)
}

/// The word and the bit of a client.
#[inline(always)]
pub fn bit_of(client: FlowHash, flow_mask: u32) -> (u32, u64) {
    let mark = client.mark(crowded_bits(flow_mask + 1));
    (mark / 64, 1 << (mark % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bits_that_no_flow_needs_are_cleared() {
        let (crowded, lately) = (AtomicLong::new(0b1111), AtomicLong::new(0b0010));
        assert_eq!(clear_stale(&crowded, &lately, 0b0101), 1);
        assert_eq!(crowded.load(), 0b0111);
        forget_lately(&lately);
        assert_eq!(clear_stale(&crowded, &lately, 0b0101), 1);
        assert_eq!(clear_stale(&crowded, &lately, 0b0101), 0);
        assert_eq!(crowded.load(), 0b0101);
    }
}
