//! A packet in the middle of a connection that this node does not know, although the slot of the
//! connection leads to a backend here. The slot may have had other owners when the connection began,
//! so their nodes are asked, one after the other, whether they know it. If another node has chosen a
//! backend here that is not the slot's owner, the owner's node is asked first.
//!
//! To ask is to send the packet there through a tunnel, with the number of the question beside the
//! key. A node that knows the connection delivers the packet. One that does not returns it, and then
//! the next one is asked; if none is left, this node's backend gets the packet. The flow's entry
//! leads to the node that was asked last, so it stays where the connection was recognized.
//!
//! # Invariants
//! - An asked node never forwards the packet. So it is forwarded at most [`FlowKind::MOST_ASKED`] times by the
//!   node that asks: each question of a packet has a higher number than the one before.
//! - Only a packet with the cluster's key is a question or an answer.

use crate::conntrack;
use crate::datapath::arrival::Arrival;
use crate::datapath::carried::Decision;
use crate::datapath::forward::carry::Carried;
use crate::datapath::forward::owners::{self, SoughtOwner, find_owner};
use crate::datapath::forward::stored;
use crate::datapath::handover::{DraftedFlow, NextStage};
use crate::datapath::redispatch::Redispatch;
use crate::datapath::segment::Segment;
use crate::datapath::select::{self, Choice, Connection, Origin};
use crate::datapath::stages::open::{prepare_draft, write_flow};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{PacketFamily, Parsed};
use crate::layout::{FlowKind, Forwarding, Frontend, FrontendKind, Reason, TunnelKey};

/// Whether a packet that belongs to no flow, and that a backend here would get, may belong to a
/// connection of an earlier owner of its slot.
#[inline(always)]
pub fn may_have_moved<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    frontend: &Frontend,
) -> bool {
    !segment.opens()
        && !segment.headers.is_datagram()
        && frontend.forwarding != Forwarding::Masquerade as u8
        && frontend.kind != FrontendKind::NodePort as u8
        && !frontend.wants_local()
        // A question needs room beside a key.
        && tables.tunnel_key(TunnelKey::Current) != 0
}

/// Whether a packet of a flow whose backend here is gone may belong to a later connection of the same
/// client and port, which began on another node.
#[inline(always)]
pub fn may_be_later<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    decision: &Decision<F>,
) -> bool {
    packet.role() == Role::External
        && !decision.kind.has(FlowKind::FORWARDED)
        && !decision.kind.has(FlowKind::SNAT)
        && tables.tunnel_key(TunnelKey::Current) != 0
}

/// Asks the next owner, or takes the packet for the backend here.
#[inline(always)]
pub fn ask_earlier_owner<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Verdict {
    match draft_flow_of_owner(packet, tables, network, arrival) {
        Ok(flow) => Verdict::Next(NextStage::begin(flow)),
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(never)]
fn draft_flow_of_owner<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Result<DraftedFlow, Reason> {
    let Parsed::Segment(segment) = stored::parse_segment::<F, P, T>(packet, tables, network) else {
        return Err(Reason::Malformed);
    };
    let connection = Connection::by(&segment);
    let frontend = select::find_frontend(tables, &connection)?;
    let mark = arrival.mark();
    let number = mark.number() + 1;
    let mut owner = None;
    // A new connection from the same port follows the flow of the old one until it is returned.
    if !mark.is_question() && number <= FlowKind::MOST_ASKED && !segment.opens() {
        owner = next_owner(tables, &connection, &frontend, arrival);
    }
    // A flood of such packets must not become a larger one between nodes. The client repeats what is
    // dropped, while a backend that does not know the connection would reset it.
    if owner.is_some() && !tables.may_ask() {
        return Err(Reason::RateLimited);
    }
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let (choice, kind) = match owner {
        Some(choice) => {
            tables.count(Reason::Asked);
            (choice, FlowKind::asking(number))
        }
        None => {
            let choice = own_backend(tables, &connection, &frontend, arrival)?;
            let kind =
                if arrival.is_by_tunnel() { FlowKind::DELIVERED } else { FlowKind::default() };
            (choice, kind)
        }
    };
    draft.hop = 0;
    write_flow(&mut draft.flow, &connection, &choice, frontend.service_port, None);
    draft.flow.kind = kind;
    draft.generation = choice.backend.generation;
    // The node that chose the backend stores the client's affinity.
    let sticky = !arrival.is_by_tunnel() && frontend.affinity != 0;
    Ok(prepare_draft(tables, draft, &segment, sticky))
}

/// The backend on this node that gets packets of connections that no other node knows.
#[inline(always)]
fn own_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    arrival: Arrival,
) -> Result<Choice<F>, Reason> {
    if arrival.is_by_tunnel() && !arrival.mark().is_returned() {
        return select::find_tunnel_target(tables, connection, frontend, arrival.tag().into());
    }
    // The tag of a returned packet names the backend that was asked.
    let choice =
        select::choose_backend(tables, connection, frontend, Origin::Outside, Redispatch::NONE)?;
    if choice.backend.is_local() {
        return Ok(choice);
    }
    find_owner(tables, connection, frontend, SoughtOwner::Local).ok_or(Reason::NoSuchTarget)
}

/// The owner of the slot that is to be asked after the one that returned the packet; the first one if
/// none has, or if that was asked for another reason than the slot ([`may_follow`]).
#[inline(always)]
fn next_owner<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    arrival: Arrival,
) -> Option<Choice<F>> {
    let number = u32::from(arrival.mark().number());
    let mut next = 1;
    if number != 0 {
        let asked = SoughtOwner::Asked { number, tag: arrival.tag() };
        if find_owner(tables, connection, frontend, asked).is_some() {
            next = tables.draft()?.owners.count + 1;
        }
    }
    find_owner(tables, connection, frontend, SoughtOwner::Nth(next))
}

/// Whether a packet that came through a tunnel may follow a flow to another node: only as a question
/// to that node. If it has just returned the packet, or would not return it, the flow is released.
///
/// The flow of a connection that this node received from a router before, and forwarded, knows more
/// than the node that has now taken a backend here for the connection's.
#[inline(always)]
pub fn may_follow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    carried: Carried,
    arrival: Arrival,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let mark = arrival.mark();
    if mark.is_question() {
        return Carried::Failed(Reason::NoSuchTarget);
    }
    let asked = draft.decision.kind.asked().max(1);
    // The flow may be older than questions, and lead to a node that does not know them.
    let can_ask = draft.decision.kind.asked() != 0 || {
        let backend = tables.backend(draft.decision.backend_index);
        backend.is_some_and(|backend| owners::can_be_asked::<F, T>(tables, &backend))
    };
    if mark.number() < asked && can_ask {
        draft.decision.kind = draft.decision.kind.and(FlowKind::asking(asked));
        return carried;
    }
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    conntrack::release_at(bucket, draft.at);
    Carried::Nothing
}
