//! Packets of flows that are known.

use super::parse::{Network, Place, Segment};
use super::translate::{self, End, Rewrite};
use super::way::{self, Query};
use super::{Direction, FamilyTables, Packet, Rejection, Stage, Verdict, answer, ingress, tcp};
use crate::flow_table::{self, Found};
use crate::hash::{AnswerHash, FlowHash};
use crate::header::NetworkHeader;
use crate::layout::{Backend, Flow, FlowKind, FlowState, Reason, Ticks, Ways};
use crate::return_table;

/// What a flow says of a packet.
pub struct Target<F: Network> {
    pub rewrite: Rewrite<F>,
    pub direction: Direction,
    pub kind: FlowKind,
    /// The backend's, when it was chosen.
    pub generation: u32,
}

impl<F: Network> Target<F> {
    /// Of a packet from the client.
    #[inline(always)]
    pub fn forward(flow: &Flow<F>) -> Self {
        Self {
            rewrite: Rewrite {
                source: End { address: flow.alias, port: flow.alias_port },
                destination: End { address: flow.backend, port: flow.backend_port },
                service_port: flow.service_port,
                backend_index: flow.backend_index,
            },
            direction: Direction::Forward,
            kind: flow.kind,
            generation: flow.backend_generation,
        }
    }
}

/// What is known of a packet on its way to a Service.
pub enum Known<'a, F: Network> {
    Flow(Found<'a, Target<F>>),
    /// It is of a connection whose backend is gone.
    Gone(Found<'a, Target<F>>),
    Nothing,
}

#[inline(always)]
pub fn client_hash<F: Network, T: FamilyTables<F>>(
    tables: &T,
    client: F::Address,
    port: u16,
    protocol: u8,
) -> FlowHash {
    FlowHash::of_client::<F>(&tables.settings().secret, client, port, protocol)
}

#[inline(always)]
fn answer_hash<F: Network, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) -> AnswerHash {
    AnswerHash::of::<F>(
        &tables.settings().secret,
        (segment.source, segment.source_port),
        (segment.destination, segment.destination_port),
        segment.place.protocol,
    )
}

/// The flow of a packet from a client to what it has dialled.
#[inline(always)]
pub fn forward<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Known<'a, F>, Reason> {
    let Some(found) = find_dialled(tables, segment)? else { return Ok(Known::Nothing) };
    let now = tables.now();
    match judge(tables, &found, segment, now) {
        Judgement::GoesOn => {}
        Judgement::Anew => {
            found.release();
            return Ok(Known::Nothing);
        }
        Judgement::Gone => return Ok(Known::Gone(found)),
    }
    found.touch(now, tcp::next_state(found.state(), Direction::Forward, segment.tcp_flags));
    Ok(Known::Flow(found))
}

/// The flow of a packet from a backend to an alias.
#[inline(always)]
pub fn answer<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Found<'a, Target<F>>>, Reason> {
    if !tables.settings().has_alias_port(segment.destination_port) {
        return Ok(None);
    }
    let found = find_alias(tables, segment)?;
    Ok(found.inspect(|found| touch_reverse(tables, found, segment)))
}

/// The flow of a packet from a backend to a client whose end the backend knows.
#[inline(always)]
pub fn reverse<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Found<'a, Target<F>>>, Reason> {
    let found = find_answered(tables, segment)?;
    Ok(found.inspect(|found| touch_reverse(tables, found, segment)))
}

#[inline(always)]
fn touch_reverse<F: Network, T: FamilyTables<F>>(
    tables: &T,
    found: &Found<'_, Target<F>>,
    segment: &Segment<F>,
) {
    let flags = segment.tcp_flags;
    let before = if found.began_midway() {
        tcp::state_before_answer(found.state(), flags)
    } else {
        found.state()
    };
    found.touch(tables.now(), tcp::next_state(before, Direction::Reverse, flags));
}

/// Finds the flow of a packet from a client, and notes nothing.
#[inline(always)]
pub fn find_dialled<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Found<'a, Target<F>>>, Reason> {
    let hash = client_hash(tables, segment.source, segment.source_port, segment.place.protocol);
    for bucket in hash.buckets(tables.flow_mask()) {
        let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
        let found = flow_table::find(bucket, hash, |flow, _| dialled(flow, segment));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Finds the flow of a packet to an alias, and notes nothing.
#[inline(always)]
pub fn find_alias<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Found<'a, Target<F>>>, Reason> {
    let Some(place) = return_table::find(tables, answer_hash(tables, segment)) else {
        return Ok(None);
    };
    let bucket = tables.flow_bucket(place.bucket).ok_or(Reason::NoSuchBucket)?;
    Ok(flow_table::find_at(bucket, place, |flow, state| answered(flow, state, segment)))
}

/// Finds the flow of a packet to a client whose end the backend knows, and notes nothing.
#[inline(always)]
pub fn find_answered<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Found<'a, Target<F>>>, Reason> {
    let Segment { place, destination, destination_port, .. } = *segment;
    let hash = client_hash(tables, destination, destination_port, place.protocol);
    for bucket in hash.buckets(tables.flow_mask()) {
        let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
        let found = flow_table::find(bucket, hash, |flow, state| answered(flow, state, segment));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What the flow says of the packet, if it is the client's.
#[inline(always)]
fn dialled<F: Network>(flow: &Flow<F>, segment: &Segment<F>) -> Option<Target<F>> {
    let same = flow.client == segment.source
        && flow.client_port == segment.source_port
        && flow.frontend == segment.destination
        && flow.frontend_port == segment.destination_port
        && flow.protocol == segment.place.protocol;
    same.then(|| Target::forward(flow))
}

/// What the flow says of the packet, if it is the backend's.
#[inline(always)]
fn answered<F: Network>(
    flow: &Flow<F>,
    state: FlowState,
    segment: &Segment<F>,
) -> Option<Target<F>> {
    let same = flow.alias == segment.destination
        && flow.alias_port == segment.destination_port
        && flow.backend == segment.source
        && flow.backend_port == segment.source_port
        && flow.protocol == segment.place.protocol
        && !tcp::answers_a_later_dial(state, segment.tcp_flags);
    same.then_some(Target {
        rewrite: Rewrite {
            source: End { address: flow.frontend, port: flow.frontend_port },
            destination: End { address: flow.client, port: flow.client_port },
            service_port: flow.service_port,
            backend_index: flow.backend_index,
        },
        direction: Direction::Reverse,
        kind: flow.kind,
        generation: flow.backend_generation,
    })
}

/// Whether the packet asks for a connection.
#[inline(always)]
pub fn opens<F: Network>(segment: &Segment<F>) -> bool {
    // Datagrams have no flags.
    !segment.place.is_datagram() && tcp::opens(segment.tcp_flags)
}

/// Whether the packet is of a connection's middle.
#[inline(always)]
pub fn is_midway<F: Network>(segment: &Segment<F>) -> bool {
    !segment.place.is_datagram() && !opens(segment)
}

enum Judgement {
    GoesOn,
    /// The packet begins a new flow with the same ends.
    Anew,
    /// There is nothing left that the packet could go to.
    Gone,
}

#[inline(always)]
fn judge<F: Network, T: FamilyTables<F>>(
    tables: &T,
    found: &Found<'_, Target<F>>,
    segment: &Segment<F>,
    now: Ticks,
) -> Judgement {
    let connected = !segment.place.is_datagram();
    let opens = opens(segment);
    let over = if connected { opens && tcp::is_closing(found.state()) } else { found.expired(now) };
    if over {
        return Judgement::Anew;
    }
    let target = &found.record;
    let backend: Option<Backend<F::Address>> = tables.backend(target.rewrite.backend_index);
    let backend = backend.filter(|b| b.protocol != 0 && b.generation == target.generation);
    match backend {
        // Datagrams move on at once; connections may end where they are.
        Some(backend) if segment.place.is_datagram() && backend.is_draining() => Judgement::Anew,
        Some(_) => Judgement::GoesOn,
        None if connected && !opens => Judgement::Gone,
        None => Judgement::Anew,
    }
}

/// Translates a packet of a known flow, and sends it on its way.
#[inline(always)]
pub fn send<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    target: &Target<F>,
    ways: &Ways,
) -> Verdict {
    if !target.kind.has(FlowKind::FORWARDED) {
        return match translate::send(packet, tables, segment, target.direction, &target.rewrite) {
            Ok(()) => Verdict::Pass,
            Err(reason) => ingress::drop_for(tables, reason),
        };
    }
    let header = packet.header::<F::Header>(segment.place.network);
    if header.is_none_or(|header| header.hop_limit() <= 1) {
        return answer::later(packet, tables, Rejection::HOP_LIMIT);
    }
    if target.kind.has(FlowKind::TUNNELLED) {
        return Verdict::Next(Stage::Encapsulate);
    }
    let query = Query {
        to: target.rewrite.destination.address,
        from: target.rewrite.source.address,
        protocol: segment.place.protocol,
        length: way::network_length(packet, segment.place),
    };
    let way = match way::out(packet, tables, ways, target.direction, &query) {
        Ok(way) => way,
        Err(verdict) => return verdict,
    };
    let sent = way::hop::<F, P>(packet, segment.place)
        .and_then(|()| translate::send(packet, tables, segment, target.direction, &target.rewrite));
    match sent.and_then(|()| way.leave(packet)) {
        Ok(verdict) => verdict,
        Err(reason) => ingress::drop_for(tables, reason),
    }
}

/// Sends a packet of a forwarded flow on from here that no error may answer: an error, or a later
/// fragment.
#[inline(always)]
pub fn leave<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    place: &Place,
    target: &Target<F>,
    ways: &Ways,
    translate: impl FnOnce(&mut P) -> Result<(), Reason>,
) -> Verdict {
    let header = packet.header::<F::Header>(place.network);
    if header.is_none_or(|header| header.hop_limit() <= 1) {
        return ingress::drop_for(tables, Reason::HopLimit);
    }
    if target.kind.has(FlowKind::TUNNELLED) {
        return Verdict::Next(Stage::Encapsulate);
    }
    let query = Query {
        to: target.rewrite.destination.address,
        from: target.rewrite.source.address,
        protocol: place.protocol,
        length: way::network_length(packet, *place),
    };
    let way = match way::out(packet, tables, ways, target.direction, &query) {
        Ok(way) => way,
        Err(Verdict::Next(_)) => return Verdict::Drop,
        Err(verdict) => return verdict,
    };
    let sent = way::hop::<F, P>(packet, *place).and_then(|()| translate(packet));
    match sent.and_then(|()| way.leave(packet)) {
        Ok(verdict) => verdict,
        Err(reason) => ingress::drop_for(tables, reason),
    }
}
