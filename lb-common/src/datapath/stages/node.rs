//! Packets that processes of this node send to SCTP Services. The kernel calls no hooks when an SCTP socket connects
//! ([`socket`](super::socket)), so their packets are translated where they leave, with an SNAT address: then the
//! replies come back to this node, and are found where they arrive.
//!
//! A backend may be a server of the node itself, to which no packet with a source address of the node can arrive. Its
//! packets turn back where they would leave, and it sees the frontend as its client:
//!
//! | packet | leaves the process or server as | turns back as |
//! | --- | --- | --- |
//! | request | node → frontend | frontend (SNAT port) → server |
//! | reply | server → frontend (SNAT port) | frontend → node |
//!
//! # Invariants
//! - Only packets that were sent on this machine, from an address of this node, are requests of its processes: what
//!   it forwards passes unmodified.
//! - A flow of a process is followed by packets of this machine's processes only, and they follow no other: a packet
//!   with a forged address of the node neither uses such a flow nor takes its place.
//! - A packet is translated once. A Service whose endpoint is its own address would make packets go round.

use crate::conntrack;
use crate::datapath::carried::Draft;
use crate::datapath::forward::carry::Carried;
use crate::datapath::forward::own;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::Reason;

/// Whether a process of this node sends a leaving packet to a Service.
#[inline(always)]
pub fn is_request<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    segment: &Segment<F>,
) -> bool {
    segment.headers.is_sctp()
        && packet.is_sent_here()
        && tables.may_be_destination(segment.destination)
        // Otherwise the packet has been translated, to a backend that is another frontend.
        && !tables.settings().has_snat_port(segment.source_port)
        && own::is_own(packet, tables, segment.source)
}

/// The outcome of the lookup for a request, unless the flow is not one of its sender: a process's packet releases a flow
/// that was opened in its name from elsewhere, and a packet from elsewhere is dropped.
#[inline(always)]
pub fn unless_of_another<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    found: Carried,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let is_of_node = draft.decision.kind.is_of_node();
    if !found.is_found() || is_of_node == (packet.role() == Role::Node) {
        return found;
    }
    if is_of_node {
        return Carried::Failed(Reason::SourceNotAllowed);
    }
    if let Some(bucket) = tables.flow_bucket(draft.at.bucket()) {
        conntrack::release_at(bucket, draft.at);
    }
    Carried::Nothing
}

/// Whether the reply whose flow is in the draft claims to be one of a server of this node, to a process of this node, but
/// has arrived from elsewhere: what the server sends turns back where it leaves.
#[inline(always)]
pub fn is_forged_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
) -> bool {
    packet.role() != Role::Node
        && tables.draft().is_some_and(|Draft { segment, decision, .. }| {
            decision.kind.is_of_node() && decision.source.address == segment.destination
        })
}
