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
//! - An asked node never forwards the packet. So it is forwarded at most [`MOST_ASKED`] times by the
//!   node that asks: each question of a packet has a higher number than the one before.
//! - Only a packet with the cluster's key is a question or an answer.

use crate::conntrack;
use crate::datapath::carried::Decision;
use crate::datapath::forward::carry::Carried;
use crate::datapath::forward::owners::{self, Wanted, find_owner};
use crate::datapath::forward::stored;
use crate::datapath::segment::Segment;
use crate::datapath::select::{self, Choice, Connection, Origin};
use crate::datapath::stages::open::{prepare_draft, write_flow};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict, drop_for};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{PacketFamily, Parsed};
use crate::header::KeyedGue;
use crate::layout::{FlowKind, Forwarding, Frontend, FrontendKind, Reason, TunnelKey};

/// How many earlier owners are asked at most.
pub const MOST_ASKED: u8 = FlowKind::MOST_ASKED;

/// What a tunnelled packet says beside its key: nothing, a question, or that a question is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u8);

impl Mark {
    pub const NONE: Self = Self(0);

    /// Whether nodes send it.
    #[inline(always)]
    pub fn is_valid(self) -> bool {
        self.number() <= MOST_ASKED && self.0 != KeyedGue::RETURNED
    }

    #[inline(always)]
    pub fn is_question(self) -> bool {
        self.0 != 0 && !self.is_returned()
    }

    #[inline(always)]
    pub fn is_returned(self) -> bool {
        self.0 & KeyedGue::RETURNED != 0
    }

    /// The number of the question, from 1.
    #[inline(always)]
    pub fn number(self) -> u8 {
        self.0 & !KeyedGue::RETURNED
    }

    /// The mark of a packet that came through a tunnel. [`Scratch::tag`](crate::datapath::Scratch)
    /// keeps it beside the tag.
    #[inline(always)]
    pub fn of_tag(tag: u32) -> Self {
        Self((tag >> 16) as u8)
    }

    #[inline(always)]
    pub fn with_tag(self, tag: u16) -> u32 {
        u32::from(tag) | u32::from(self.0) << 16
    }
}

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
) -> Verdict {
    match draft_flow_of_owner(packet, tables, network) {
        Ok(()) => Verdict::Next(Stage::Begin),
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(never)]
fn draft_flow_of_owner<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Result<(), Reason> {
    let Parsed::Segment(segment) = stored::parse_segment::<F, P, T>(packet, tables, network) else {
        return Err(Reason::Malformed);
    };
    let connection = Connection::by(&segment);
    let frontend = select::find_frontend(tables, &connection)?;
    let is_delivered = tables.is_delivered();
    let tag = if is_delivered { tables.tag() } else { 0 };
    let mark = Mark::of_tag(tag);
    let number = mark.number() + 1;
    let mut owner = None;
    // A new connection from the same port follows the flow of the old one until it is returned.
    if !mark.is_question() && number <= MOST_ASKED && !segment.opens() {
        owner = next_owner(tables, &connection, &frontend, tag);
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
            let choice = own_backend(tables, &connection, &frontend, tag, is_delivered)?;
            let kind = if is_delivered { FlowKind::DELIVERED } else { FlowKind::default() };
            (choice, kind)
        }
    };
    draft.hop = 0;
    write_flow(&mut draft.flow, &connection, &choice, frontend.service_port, None);
    draft.flow.kind = kind;
    draft.generation = choice.backend.generation;
    prepare_draft(tables, draft, &segment, !is_delivered && frontend.affinity != 0);
    Ok(())
}

/// The backend on this node that gets packets of connections that no other node knows.
#[inline(always)]
fn own_backend<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    tag: u32,
    is_delivered: bool,
) -> Result<Choice<F>, Reason> {
    if is_delivered && !Mark::of_tag(tag).is_returned() {
        return select::find_tunnel_target(tables, connection, frontend, tag & 0xffff);
    }
    // The tag of a returned packet names the backend that was asked.
    let choice = select::choose_backend(tables, connection, frontend, Origin::Outside)?;
    if choice.backend.is_local() {
        return Ok(choice);
    }
    find_owner(tables, connection, frontend, Wanted::Local).ok_or(Reason::NoSuchTarget)
}

/// The owner of the slot that is to be asked after the one that returned the packet; the first one if
/// none has, or if that was asked for another reason than the slot ([`may_follow`]).
#[inline(always)]
fn next_owner<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    connection: &Connection<F>,
    frontend: &Frontend,
    tag: u32,
) -> Option<Choice<F>> {
    let number = u32::from(Mark::of_tag(tag).number());
    let mut next = 1;
    if number != 0 {
        let asked = Wanted::Asked { number, tag: tag as u16 };
        if find_owner(tables, connection, frontend, asked).is_some() {
            next = tables.draft()?.owners.count + 1;
        }
    }
    find_owner(tables, connection, frontend, Wanted::Nth(next))
}

/// Whether a packet that came through a tunnel may follow a flow to another node: only as a question
/// to that node. If it has just returned the packet, or would not return it, the flow is released.
///
/// The flow of a connection that this node received from a router before, and forwarded, knows more
/// than the node that has now taken a backend here for the connection's.
#[inline(always)]
pub fn may_follow<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let mark = Mark::of_tag(tables.tag());
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
        return Carried::Found;
    }
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    conntrack::release_at(bucket, draft.at);
    Carried::Nothing
}
