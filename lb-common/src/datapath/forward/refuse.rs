//! Packets whose senders get a reset or an ICMP error, which the next stage writes.

use super::lookup::FlowOf;
use crate::datapath::handover::NextStage;
use crate::datapath::rejection::{Rejection, RejectionKind};
use crate::datapath::segment::Headers;
use crate::datapath::tables::{FamilyTables, Tables};
use crate::datapath::verdict::Verdict;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::{Device, Reason};

/// Lets the next stage notify the sender that no backend serves the frontend, or no longer does;
/// counts the reason.
#[inline(always)]
pub fn refuse_without_backend<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    headers: Headers,
    reason: Reason,
) -> Verdict {
    if !can_answer(packet, tables) {
        return Verdict::Defer;
    }
    tables.count(reason);
    if headers.is_tcp() {
        return Verdict::Next(NextStage::RESET);
    }
    Verdict::Next(NextStage::reject(tables, Rejection::PORT_UNREACHABLE))
}

/// Lets the next stage notify the sender that its packet cannot be forwarded.
#[inline(always)]
pub fn refuse_with_icmp<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    rejection: Rejection,
) -> Verdict {
    if !can_answer(packet, tables) {
        return Verdict::Defer;
    }
    let too_big = rejection.kind == RejectionKind::TOO_BIG;
    tables.count(if too_big { Reason::TooBig } else { Reason::HopLimit });
    Verdict::Next(NextStage::reject(tables, rejection))
}

/// Whether the hook can send through the interface on which the packet arrived; otherwise the next
/// hook does.
#[inline(always)]
pub fn can_answer<P: Packet, T: Tables>(packet: &P, tables: &T) -> bool {
    packet.resolves()
        || tables.device(packet.device()).is_some_and(|known| known.flags & Device::TRANSMIT != 0)
}

/// A packet of a connection whose backend is gone: the client is notified, and the entry released.
#[inline(always)]
pub fn refuse_gone_backend<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    headers: Headers,
    found: &FlowOf<'_, F>,
) -> Verdict {
    let verdict = refuse_without_backend(packet, tables, headers, Reason::BackendGone);
    if verdict != Verdict::Defer {
        found.release();
    }
    verdict
}
