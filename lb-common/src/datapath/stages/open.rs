//! A packet that belongs to no flow, and may open one.

use crate::conntrack::{Beginning, Location};
use crate::datapath::arrival::Arrival;
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::forward::{begin, next_hop, refuse, stored, untracked};
use crate::datapath::function::Function;
use crate::datapath::handover::{Alone, DraftedDecision, DraftedFlow, NextStage};
use crate::datapath::redispatch::Redispatch;
use crate::datapath::route::{NextHop, Query, Route};
use crate::datapath::segment::Segment;
use crate::datapath::select::{self, Choice, Connection, Origin};
use crate::datapath::stages::{bfd, earlier};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{PacketFamily, Parsed};
use crate::header::GUE;
use crate::layout::{Flow, FlowKind, Reason};

#[inline(always)]
pub fn open_flow<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    (alone, redispatch): (Alone, Redispatch),
) -> Verdict {
    match draft_flow(packet, tables, network, alone, redispatch) {
        // Most clients have no other flow from this port; then this stage stores the flow itself.
        Ok(flow) if alone.is_alone() => {
            begin::begin_drafted_flow(tables, Function::BeginAlone, flow)
        }
        Ok(flow) => Verdict::Next(NextStage::begin(flow)),
        Err(verdict) => verdict,
    }
}

/// Drafts the flow that the packet opens.
#[inline(always)]
fn draft_flow<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    alone: Alone,
    redispatch: Redispatch,
) -> Result<DraftedFlow, Verdict> {
    let segment = match stored::parse_segment::<F, P, T>(packet, tables, network) {
        Parsed::Segment(segment) => segment,
        other => return Err(pass_for(tables, other.reason())),
    };
    let connection = Connection::by(&segment);
    let origin = match packet.role() {
        Role::External => Origin::Outside,
        Role::Workload | Role::Node => Origin::Inside,
    };
    let frontend = match select::find_frontend(tables, &connection) {
        Ok(frontend) => frontend,
        Err(reason) => return Err(refuse_to_open(packet, tables, &segment, reason)),
    };
    let choice = match select::choose_backend(tables, &connection, &frontend, origin, redispatch) {
        Ok(choice) => choice,
        Err(reason) => return Err(refuse_to_open(packet, tables, &segment, reason)),
    };
    if origin == Origin::Outside
        && choice.backend.is_local()
        && earlier::may_have_moved(tables, &segment, &frontend)
    {
        return Err(Verdict::Next(NextStage::earlier(tables, Arrival::BY_LINK)));
    }
    let tunnel = match origin {
        Origin::Outside => select::tunnel_to_backend(tables, &frontend, &choice),
        Origin::Inside => None,
    };
    let Some(draft) = tables.draft() else {
        return Err(drop_for(tables, Reason::CorruptTable));
    };
    draft.hop = 0;
    let source = if tunnel.is_some() {
        None
    } else {
        choose_snat_address(packet, tables, &connection, &choice, origin, network, draft)?
    };
    write_flow(&mut draft.flow, &connection, &choice, frontend.service_port, source);
    let is_snat = source.is_some();
    if let Some(kind) = tunnel {
        draft.flow.kind = kind;
    }
    if packet.role() == Role::Node {
        draft.flow.kind = FlowKind::SNAT.and(FlowKind::NODE);
    }
    draft.generation = choice.backend.generation;
    let flow = prepare_draft(tables, draft, &segment, frontend.affinity != 0);
    draft.alone = alone;
    if tunnel.is_none() {
        draft.flow.kind = draft.flow.kind.and(redispatch.kind());
    }
    // A process's flow, too: not by the kind, of which the verifier knows nothing now.
    if is_snat {
        return Err(Verdict::Next(NextStage::snat(flow)));
    }
    Ok(flow)
}

/// Writes the first state of a drafted flow. Another flow of its client's address and port may exist.
#[inline(always)]
pub fn prepare_draft<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    draft: &mut Draft<F>,
    segment: &Segment<F>,
    sticky: bool,
) -> DraftedFlow {
    let one_way = draft.flow.kind.has(FlowKind::TUNNELLED);
    let protocol = segment.headers.protocol;
    let beginning = Beginning::new(protocol, one_way, &segment.signal, || tables.now());
    draft.state = beginning.state as u32;
    draft.track = beginning.track;
    draft.sticky = u32::from(sticky);
    draft.crowded = 0;
    draft.alone = Alone::default();
    draft.sequence = segment.signal.sequence;
    draft.round = 0;
    DraftedFlow::proven()
}

/// Remembers a flow for which there is no entry; then the packet is sent. Replies to tunnelled packets do not pass
/// this node.
#[inline(always)]
pub fn forward_untracked<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    _: DraftedFlow,
) -> Verdict {
    tables.count(Reason::Untracked);
    let Some(draft) = tables.draft() else { return drop_for(tables, Reason::CorruptTable) };
    begin::store_draft_affinity(tables, draft);
    if !draft.flow.kind.has(FlowKind::TUNNELLED) {
        untracked::store_untracked(tables, &draft.flow);
    }
    draft.decision = Decision::of_request(&draft.flow);
    draft.at = Location::NONE;
    Verdict::Next(NextStage::send(DraftedDecision::proven()))
}

/// Whether it may have come through a tunnel. Tested late, because a Service or SNAT may use the
/// port.
#[inline(always)]
fn is_gue<F: PacketFamily>(segment: &Segment<F>) -> bool {
    segment.headers.is_datagram() && segment.destination_port == GUE
}

/// The verdict for a packet that opens no flow.
#[inline(always)]
fn refuse_to_open<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    segment: &Segment<F>,
    reason: Reason,
) -> Verdict {
    match reason {
        Reason::NoFrontend if is_gue(segment) => Verdict::Next(NextStage::DECAPSULATE),
        Reason::NoFrontend if bfd::is_bfd(segment) => Verdict::Next(NextStage::BFD),
        // Other programs of the node use the address, too, for example sshd.
        Reason::NoFrontend => pass_for(tables, reason),
        Reason::NoSuchPort => {
            Verdict::Next(NextStage::unserved_port(tables, reason, segment.headers.protocol))
        }
        Reason::NoBackend => {
            refuse::refuse_without_backend(packet, tables, segment.headers, reason)
        }
        _ => drop_for(tables, reason),
    }
}

/// The SNAT address, if replies would not come back through this node otherwise. The next hop that
/// is found meanwhile is stored in the draft.
#[inline(always)]
fn choose_snat_address<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    connection: &Connection<F>,
    choice: &Choice<F>,
    origin: Origin,
    network: usize,
    draft: &mut Draft<F>,
) -> Result<Option<F::Address>, Verdict> {
    let backend = &choice.backend;
    let wanted = match origin {
        Origin::Outside => !backend.is_local(),
        // A host drops packets from the network with its own source address.
        Origin::Inside => backend.address == connection.client || packet.role() == Role::Node,
    };
    if !wanted {
        return Ok(None);
    }
    draft.epoch = tables.network_epoch();
    let length = next_hop::network_length::<F, P>(packet, network);
    let query: Query<F> = Query {
        to: backend.address,
        from: connection.client,
        protocol: connection.protocol,
        length,
    };
    let from = hop_of(packet, choice);
    // A longer packet may not fit the path, which only a lookup knows.
    let known =
        if length <= F::LEAST_MTU { known_hop(tables, from, choice, draft.epoch) } else { None };
    let device = match known {
        Some(next) => {
            draft.hop = next.to_word();
            next.device
        }
        None => match next_hop::look_up_route(packet, &query) {
            Route::Known { next, mtu } => {
                draft.hop = next_hop::word_to_store(tables, next, mtu);
                keep_hop(tables, from, choice, draft);
                next.device
            }
            // A server of this node itself.
            Route::None if packet.role() == Role::Node && backend.is_local() => {
                return Ok(Some(connection.address));
            }
            other => next_hop::without_next_hop(packet, tables, other)?,
        },
    };
    let address = tables.device(device).map(|device| F::address_of(&device));
    match address {
        Some(address) if address != F::Address::default() => Ok(Some(address)),
        _ => Err(drop_for(tables, Reason::NoSnatPort)),
    }
}

/// What a shared next hop is valid for: the backend's generation and the interface that the packet came
/// from, as another one may not forward.
#[inline(always)]
fn hop_of<F: PacketFamily, P: Packet>(packet: &P, choice: &Choice<F>) -> u32 {
    choice.backend.generation ^ packet.device().rotate_right(8)
}

/// The next hop to a backend that an earlier flow has resolved.
#[inline(always)]
fn known_hop<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    from: u32,
    choice: &Choice<F>,
    epoch: u32,
) -> Option<NextHop> {
    if !tables.shares_hops() {
        return None;
    }
    let hop = tables.backend_hop(choice.index)?;
    hop.get(from, epoch, tables.now()).map(NextHop::from_word)
}

/// Stores the drafted flow's next hop for other flows to the backend.
#[inline(always)]
fn keep_hop<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    from: u32,
    choice: &Choice<F>,
    draft: &Draft<F>,
) {
    if draft.hop != 0
        && tables.shares_hops()
        && let Some(hop) = tables.backend_hop(choice.index)
    {
        hop.set(from, draft.epoch, tables.now(), draft.hop);
    }
}

/// Writes the flow field by field: a whole copy would be built on the stack first.
#[inline(always)]
pub fn write_flow<F: PacketFamily>(
    flow: &mut Flow<F>,
    connection: &Connection<F>,
    choice: &Choice<F>,
    service_port: u32,
    source: Option<F::Address>,
) {
    let (snat, kind) = match source {
        Some(address) => (address, FlowKind::SNAT.and(FlowKind::FORWARDED)),
        None => (connection.client, FlowKind::default()),
    };
    flow.client = connection.client;
    flow.frontend = connection.address;
    flow.backend = choice.backend.address;
    flow.snat = snat;
    flow.client_port = connection.client_port;
    flow.frontend_port = connection.port;
    flow.backend_port = choice.backend.port;
    flow.snat_port = connection.client_port;
    flow.service_port = service_port;
    flow.backend_index = choice.index;
    flow.backend_generation = choice.backend.generation as u16;
    flow.protocol = connection.protocol;
    flow.kind = kind;
    flow.reserved = F::Padding::default();
}
