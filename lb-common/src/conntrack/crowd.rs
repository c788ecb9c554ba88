//! Clients with many flows, as a resolver that asks thousands of Services from one socket.
//!
//! Flows lie in two buckets that follow from the client's address and port, which packets both ways
//! carry. A client that fills its share of them has further flows in buckets that follow from client
//! and frontend: requests find them there, replies by the reply index. A bit for each first bucket
//! says whether that may be so, which spares everyone else the look-up. Bits are never cleared: a wrong
//! one costs a look-up.

use super::tables::FlowTables;
use crate::family::Family;
use crate::hash::FlowHash;

/// Whether flows of this client may be in other buckets than its own.
#[inline(always)]
pub fn is_crowded<F: Family, T: FlowTables<F>>(tables: &T, client: FlowHash) -> bool {
    let (word, bit) = place(client, tables.flow_mask());
    tables.crowded(word).is_some_and(|word| word.load() & bit != 0)
}

/// Notes that they may be, before the first one is; false if other processors were always faster.
#[inline(always)]
pub fn set_crowded<F: Family, T: FlowTables<F>>(tables: &T, client: FlowHash) -> bool {
    const TRIES: usize = 4;
    let (word, bit) = place(client, tables.flow_mask());
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
fn place(client: FlowHash, mask: u32) -> (u32, u64) {
    let [bucket, _] = client.buckets(mask);
    (bucket / 64, 1 << (bucket % 64))
}
