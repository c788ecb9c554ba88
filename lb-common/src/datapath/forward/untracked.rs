//! Packets that are forwarded without an entry in the flow table.
//!
//! If every entry that a new flow could replace is protected, its packets are still forwarded
//! unless they need SNAT: the pool's table leads each of them to the same backend. The frontend is
//! stored for replies in an LRU map, which every packet of the client refreshes.

use super::carry;
use crate::datapath::carried::Decision;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{Flow, ReplyKey, Ticks, Untracked};

/// How long replies are looked up after the last packet without an entry, in seconds.
const HEEDED: u32 = 300;

/// Stores the frontend of a flow without an entry.
#[inline(always)]
pub fn store_untracked<F: PacketFamily, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>) {
    let key = ReplyKey {
        backend: flow.backend,
        client: flow.client,
        backend_port: flow.backend_port,
        client_port: flow.client_port,
        protocol: flow.protocol,
        reserved: [0; 3],
    };
    let untracked = Untracked {
        frontend: flow.frontend,
        service_port: flow.service_port,
        backend_index: flow.backend_index,
        frontend_port: flow.frontend_port,
        reserved: [0; 2],
        padding: F::Padding::default(),
    };
    if tables.untracked(&key) != Some(untracked) {
        tables.set_untracked(&key, &untracked);
    }
    if let Some(hints) = tables.hints() {
        // 0 is never. Written only when it changes: every packet of every CPU reads the cache line.
        let now = tables.now().0 | 1;
        if hints.untracked.load() != now {
            hints.untracked.store(now);
        }
    }
}

/// Whether there may be replies of flows without an entry.
#[inline(always)]
pub fn are_recent<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(hints) = tables.hints() else { return false };
    let last = hints.untracked.load();
    last != 0 && tables.now().since(Ticks(last)) <= Ticks::in_seconds(HEEDED)
}

/// The function [`Function::FindUntracked`](crate::datapath::Function): stores the decision for the stored segment, of
/// a backend, if it is a reply of a flow without an entry.
#[inline(always)]
pub fn find_untracked_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let segment = &draft.segment;
    let key = ReplyKey {
        backend: segment.source,
        client: segment.destination,
        backend_port: segment.source_port,
        client_port: segment.destination_port,
        protocol: segment.headers.protocol,
        reserved: [0; 3],
    };
    let Some(untracked) = tables.untracked(&key) else { return false };
    carry::copy_decision(&mut draft.decision, &Decision::of_untracked_reply(segment, &untracked));
    true
}
