//! A client's repeated SYN, or a backend's reset that refuses one: the connection may move to another backend
//! ([`redispatch`](crate::datapath::redispatch)).
//!
//! An endpoint that ends refuses connections from when it listens no more until its node and this one know that. If the
//! pool has another backend, the client need not learn of it: the reset, which acknowledges the SYN and is all that the
//! backend has sent, becomes an acknowledgement of what the client has not sent. A client that waits for a SYN-ACK does not
//! take it (RFC 9293, 3.10.7.3): Linux repeats its SYN at once, others after the usual second. The repeated SYN opens a
//! flow to another backend.
//!
//! The client also sends a reset, with the sequence number that was acknowledged. It is before the SYN's, so no
//! backend takes it for one of a connection.

use core::mem::offset_of;

use crate::checksum::Delta;
use crate::conntrack::Location;
use crate::datapath::forward::stored;
use crate::datapath::function::Function;
use crate::datapath::handover::{DraftedDecision, NextStage};
use crate::datapath::redispatch::Redispatch;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{PacketFamily, Parsed};
use crate::header::Tcp;
use crate::layout::{FlowKind, Reason};

/// From the number that a refusal acknowledges to the one before the SYN's.
const BEFORE_SYN: u32 = 2;

/// Moves the connection of the flow at `location`, or lets its packet go on.
#[inline(always)]
pub fn redispatch_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    location: Location,
) -> Verdict {
    let segment = match stored::parse_segment::<F, P, T>(packet, tables, network) {
        Parsed::Segment(segment) => segment,
        other => return pass_for(tables, other.reason()),
    };
    let Some(draft) = tables.draft() else { return drop_for(tables, Reason::CorruptTable) };
    draft.at = location;
    draft.inside = u32::from(packet.role() != Role::External);
    let redispatch = Redispatch::from_number(tables.call(Function::Redispatch));
    let moves = redispatch != Redispatch::NONE && redispatch != Redispatch::REPLACED;
    if segment.opens() {
        return Verdict::Next(if moves {
            NextStage::reopen(tables, redispatch)
        } else {
            NextStage::FRAGMENT_IN
        });
    }
    if redispatch == Redispatch::REPLACED {
        return pass_for(tables, Reason::NoFlow);
    }
    if moves && unacknowledge_syn::<F, P>(packet, segment.headers.transport).is_none() {
        return drop_for(tables, Reason::Unwritable);
    }
    let Some(draft) = tables.draft() else { return drop_for(tables, Reason::CorruptTable) };
    // A reply to an SNAT address has arrived; others leave.
    let decision = DraftedDecision::proven();
    let is_snat = draft.decision.kind.has(FlowKind::SNAT);
    Verdict::Next(if is_snat { NextStage::send(decision) } else { NextStage::reply(decision) })
}

/// Turns the refusal at `transport` into an acknowledgement of what came before the SYN.
#[inline(always)]
fn unacknowledge_syn<F: PacketFamily, P: Packet>(packet: &mut P, transport: usize) -> Option<()> {
    let tcp: &mut Tcp = packet.header_mut(transport)?;
    let (acknowledgement, flags) = (tcp.acknowledgement, tcp.flags);
    let before = u32::from_be_bytes(acknowledgement).wrapping_sub(BEFORE_SYN).to_be_bytes();
    tcp.acknowledgement = before;
    tcp.flags = Tcp::ACK;
    let delta = Delta::of_octets(acknowledgement, before)
        .plus(Delta::of_port(flags.into(), Tcp::ACK.into()));
    let checksum = transport + offset_of!(Tcp, checksum);
    packet.update_transport_checksum::<F>(checksum, Delta::default(), delta, false)
}
