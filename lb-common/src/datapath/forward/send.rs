//! The one sender: executes a decision.

use super::carry::Carried;
use super::next_hop::{self, Out};
use super::{refuse, rewrite, stored};
use crate::conntrack::{Hops, Location, hops_at};
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::handover::NextStage;
use crate::datapath::rejection::Rejection;
use crate::datapath::route::Query;
use crate::datapath::segment::{Headers, Segment};
use crate::datapath::tables::{Counters, FamilyTables};
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::link;
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::PacketFamily;
use crate::hash;
use crate::header::NetworkHeader;
use crate::layout::{FlowKind, Reason};

/// Translates and sends a packet; its sender may get an ICMP error instead.
#[inline(always)]
pub fn send_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
    hops: Option<Hops<'_>>,
) -> Verdict {
    if decision.kind.has(FlowKind::TUNNELLED) {
        if !may_go_on::<F, P>(packet, segment.headers.network) {
            return refuse::refuse_with_icmp(packet, tables, Rejection::HOP_LIMIT);
        }
        return into_tunnel(tables, segment, decision, hops, true);
    }
    past_tunnels(packet, tables, segment, decision, hops)
}

/// Sends a packet that is not tunnelled, such as a reply.
#[inline(always)]
pub fn past_tunnels<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
    hops: Option<Hops<'_>>,
) -> Verdict {
    if !decision.kind.has(FlowKind::FORWARDED) {
        return pass_rewritten(tables, rewrite::rewrite_packet(packet, tables, segment, decision));
    }
    if !may_go_on::<F, P>(packet, segment.headers.network) {
        return refuse::refuse_with_icmp(packet, tables, Rejection::HOP_LIMIT);
    }
    let out = match next_hop(packet, tables, segment.headers, decision, hops) {
        Ok(out) => out,
        Err(verdict) => return verdict,
    };
    let rewritten = packet
        .decrement_hop_limit::<F>(segment.headers.network)
        .ok_or(Reason::Unwritable)
        .and_then(|()| rewrite::rewrite_packet(packet, tables, segment, decision));
    send_to_next_hop(packet, tables, out, rewritten)
}

/// Whether TTL or hop limit allows another hop.
#[inline(always)]
fn may_go_on<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> bool {
    packet.header::<F::Header>(network).is_some_and(|header| header.hop_limit() > 1)
}

/// The verdict after a lookup: sends the packet of a flow that was found, or continues in another
/// stage.
#[inline(always)]
pub fn found_or<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    found: Carried,
    otherwise: impl FnOnce() -> NextStage,
) -> Verdict {
    match found {
        Carried::Found(_) => send_carried::<F, P, T>(packet, tables, network),
        Carried::Nothing => Verdict::Next(otherwise()),
        Carried::Failed(Reason::BackendGone) => refuse_gone::<F, P, T>(packet, tables, network),
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

/// Notifies the client that the backend is gone.
#[inline(always)]
pub fn refuse_gone<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match stored::read_segment::<F, T>(tables, network) {
        Some(segment) => {
            refuse::refuse_without_backend(packet, tables, segment.headers, Reason::BackendGone)
        }
        None => drop_for(tables, Reason::CorruptTable),
    }
}

/// Sends the packet of the stored segment as the draft says: of the flow that was found or begun, or of one that has no
/// entry ([`Location::NONE`]).
#[inline(always)]
pub fn send_draft<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let (Some(draft), Some(segment)) =
        (tables.draft(), stored::read_segment::<F, T>(tables, network))
    else {
        return drop_for(tables, Reason::CorruptTable);
    };
    let mut hops = None;
    if draft.at != Location::NONE {
        hops = hops_of(tables, draft);
        if hops.is_none() {
            return drop_for(tables, Reason::CorruptTable);
        }
    }
    // What a process of this node sends leaves, unless its client is the frontend to a server of this node.
    if packet.role() == Role::Node && draft.decision.source.address != segment.destination {
        draft.decision.kind = draft.decision.kind.and(FlowKind::FORWARDED);
    }
    match send_packet(packet, tables, &segment, &draft.decision, hops) {
        Verdict::Pass if packet.role() == Role::Node => return_to_stack(packet, tables),
        // Not back to the process.
        Verdict::Transmit if packet.role() == Role::Node => Verdict::Redirect,
        verdict => verdict,
    }
}

/// Sends the packet of the stored segment as the draft says, with the next hops of the flow that its decision came from.
#[inline(never)]
pub fn send_carried<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let (Some(draft), Some(segment)) =
        (tables.draft(), stored::read_segment::<F, T>(tables, network))
    else {
        return drop_for(tables, Reason::CorruptTable);
    };
    let Some(hops) = hops_of(tables, draft) else {
        return drop_for(tables, Reason::CorruptTable);
    };
    send_packet(packet, tables, &segment, &draft.decision, Some(hops))
}

/// The next hops of the flow that a draft's decision came from.
#[inline(always)]
pub fn hops_of<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &Draft<F>,
) -> Option<Hops<'a>> {
    let bucket = tables.flow_bucket(draft.at.bucket())?;
    Some(hops_at(bucket, draft.at))
}

/// Where a packet goes after it was rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    Stack,
    /// To the next hop that was found.
    NextHop,
    /// The packet is not sent: its verdict is known.
    Ended(Verdict),
}

/// Finds where a packet goes that must not cause an ICMP error: an error itself, with headers at
/// `headers`, or a later fragment. By the decision in the draft; `segment` identifies the flow.
#[inline(always)]
pub fn aim_without_errors<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    headers: Headers,
    segment: &Segment<F>,
    out: &mut Out,
) -> Departure {
    let Some(draft) = tables.draft() else {
        return Departure::Ended(drop_for(tables, Reason::CorruptTable));
    };
    let decision = &draft.decision;
    if !decision.kind.has(FlowKind::FORWARDED) {
        return Departure::Stack;
    }
    if !may_go_on::<F, P>(packet, headers.network) {
        return Departure::Ended(drop_for(tables, Reason::HopLimit));
    }
    let hops = if draft.at == Location::NONE { None } else { hops_of(tables, draft) };
    if decision.kind.has(FlowKind::TUNNELLED) {
        return Departure::Ended(into_tunnel(tables, segment, decision, hops, false));
    }
    match next_hop(packet, tables, headers, decision, hops) {
        Ok(found) => *out = found,
        Err(Verdict::Next(_)) => return Departure::Ended(Verdict::Drop),
        Err(verdict) => return Departure::Ended(verdict),
    }
    Departure::NextHop
}

/// Sends a packet as the draft says, in two calls with a stack frame each: `aim` finds where to, and
/// `rewrite` translates.
#[inline(always)]
pub fn in_steps<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    aim: impl Fn(&mut P, &T, usize, &mut Out) -> Departure,
    rewrite: impl Fn(&mut P, &T, usize) -> Result<(), Reason>,
) -> Verdict {
    let mut out = Out::default();
    let departure = aim(packet, tables, network, &mut out);
    if let Departure::Ended(verdict) = departure {
        return verdict;
    }
    let rewritten = rewrite(packet, tables, network);
    send_rewritten::<F, P, T>(packet, tables, network, departure, out, rewritten)
}

/// Sends a rewritten packet whose headers are at `network`.
#[inline(always)]
fn send_rewritten<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    departure: Departure,
    out: Out,
    rewritten: Result<(), Reason>,
) -> Verdict {
    match departure {
        Departure::Ended(verdict) => verdict,
        Departure::Stack => pass_rewritten(tables, rewritten),
        Departure::NextHop => {
            let rewritten = rewritten
                .and_then(|()| packet.decrement_hop_limit::<F>(network).ok_or(Reason::Unwritable));
            send_to_next_hop(packet, tables, out, rewritten)
        }
    }
}

/// Passes a packet to the stack, up or down, after it was rewritten.
#[inline(always)]
pub fn pass_rewritten<T: Counters>(tables: &T, written: Result<(), Reason>) -> Verdict {
    match written {
        Ok(()) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}

/// Passes a rewritten packet that leaves for its client: to a process of this node through the stack.
#[inline(always)]
pub fn pass_to_client<P: Packet, T: Counters>(
    packet: &mut P,
    tables: &T,
    kind: FlowKind,
    rewritten: Verdict,
) -> Verdict {
    if rewritten == Verdict::Pass && kind.is_of_node() {
        packet.set_role(Role::Node);
        return return_to_stack(packet, tables);
    }
    rewritten
}

/// Sends a rewritten packet of [`Role::Node`] back into the stack.
#[inline(always)]
fn return_to_stack<P: Packet, T: Counters>(packet: &mut P, tables: &T) -> Verdict {
    match link::send_back(packet) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

/// Passes the packet to the stage that encapsulates it.
#[inline(always)]
fn into_tunnel<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
    hops: Option<Hops<'_>>,
    errors_allowed: bool,
) -> Verdict {
    NextStage::encapsulate(tables, |encapsulation| {
        encapsulation.service_port = decision.service_port;
        encapsulation.backend_index = decision.backend_index;
        encapsulation.backend_generation = decision.backend_generation;
        encapsulation.source_port = source_port(segment);
        encapsulation.kind = decision.kind;
        encapsulation.errors_allowed = u8::from(errors_allowed);
        encapsulation.tracked = u8::from(hops.is_some());
        encapsulation.location = hops.map_or(Location::default(), |hops| hops.location);
    })
}

/// The source port, by which routers and the node's network card distinguish flows: a dynamic port
/// (RFC 6335).
#[inline(always)]
fn source_port<F: PacketFamily>(segment: &Segment<F>) -> u16 {
    let Segment { source, source_port, destination, destination_port, headers, .. } = *segment;
    let hash =
        hash::spread::<F>(source, source_port, destination, destination_port, headers.protocol);
    0xc000 | hash as u16
}

/// Finds the next hop.
#[inline(always)]
fn next_hop<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    headers: Headers,
    decision: &Decision<F>,
    hops: Option<Hops<'_>>,
) -> Result<Out, Verdict> {
    let query = Query {
        to: decision.destination.address,
        from: decision.source.address,
        protocol: headers.protocol,
        length: next_hop::network_length::<F, P>(packet, headers.network),
    };
    next_hop::find_next_hop(packet, tables, hops, decision.direction, &query)
}

/// Sends a rewritten packet to its next hop.
#[inline(always)]
fn send_to_next_hop<P: Packet, T: Counters>(
    packet: &mut P,
    tables: &T,
    out: Out,
    rewritten: Result<(), Reason>,
) -> Verdict {
    match rewritten.and_then(|()| out.leave(packet)) {
        Ok(verdict) => verdict,
        Err(reason) => drop_for(tables, reason),
    }
}
