//! Flows that are not in the buckets of their client.
//!
//! A client's address and port, which packets in both directions carry, select two buckets for its
//! flows. If established connections have all entries of both, or if the client has used up its
//! share of them, like a resolver that queries thousands of Services from one socket, client and
//! frontend select two other buckets. Requests are found there by that hash, replies by the reply
//! index. A bit for each first bucket says whether this may be so, which saves all other clients the
//! lookup. Bits are never cleared: a stale one costs a lookup.

use super::entry::Word;
use super::tables::FlowTables;
use crate::branchless::is_zero;
use crate::family::Family;
use crate::hash::FlowHash;
use crate::layout::FlowBucket;

/// The most flows of one client's address and port in its two buckets.
const SHARE: u64 = 8;

/// Whether the client's flows have used up their share of its buckets.
#[inline(always)]
pub fn fills_its_share<F: Family>(buckets: &[(u32, &FlowBucket<F>); 2], client: FlowHash) -> bool {
    let mut count = 0;
    for (_, bucket) in buckets {
        for tag in &bucket.tags {
            let word = Word(tag.word.load());
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
    const TRIES: usize = 4;
    let (word, bit) = bit_of(client, tables.flow_mask());
    let Some(word) = tables.crowded(word) else { return false };
    for _ in 0..TRIES {
        let old = word.load();
        if old & bit != 0 || word.replace(old, old | bit) {
            return true;
        }
    }
    false
}

#[inline(always)]
fn bit_of(client: FlowHash, mask: u32) -> (u32, u64) {
    let [bucket, _] = client.buckets(mask);
    (bucket / 64, 1 << (bucket % 64))
}
