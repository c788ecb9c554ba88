//! Finding the flow of a packet.
//!
//! # Invariant
//! Every lookup, by request or by reply, ignores a flow that has been idle for longer than its
//! timeout, and releases its entry.

use crate::conntrack::{self, LocatedFlow, is_crowded, reply_index, track};
use crate::datapath::carried::Decision;
use crate::datapath::redispatch::RepeatedSyn;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::hash::{FlowHash, ReplyHash};
use crate::layout::{Backend, Direction, Flow, FlowKind, FlowState, Reason, TunnelKey};
use crate::verifier::rarely;

/// A flow that was found, and its decision for the packet.
pub type FlowOf<'a, F> = LocatedFlow<'a, F, Decision<F>>;

/// What the lookup found for a packet to a Service.
pub enum RequestLookup<'a, F: PacketFamily> {
    Flow(FlowOf<'a, F>),
    /// The packet opens a connection, and there is a flow: of an earlier connection, or of this one. It was not updated.
    Opens,
    /// The packet belongs to a connection whose backend is gone.
    Gone(FlowOf<'a, F>),
    Nothing,
}

/// The hash that selects the buckets of a client's address and port.
#[inline(always)]
pub fn client_hash<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    client: F::Address,
    port: u16,
    protocol: u8,
) -> FlowHash {
    FlowHash::of_client::<F>(&tables.settings().secret, client, port, protocol)
}

/// The hash of a flow that is not in its client's buckets.
#[inline(always)]
pub fn spread_hash<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    client: (F::Address, u16),
    frontend: (F::Address, u16),
    protocol: u8,
) -> FlowHash {
    FlowHash::of_frontend::<F>(&tables.settings().secret, client, frontend, protocol)
}

/// The hash of the packet's client.
#[inline(always)]
pub fn client_hash_of<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> FlowHash {
    client_hash(tables, segment.source, segment.source_port, segment.headers.protocol)
}

/// The hash of the packet's flow if that is not in its client's buckets.
#[inline(always)]
pub fn spread_hash_of<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> FlowHash {
    let client = (segment.source, segment.source_port);
    let frontend = (segment.destination, segment.destination_port);
    spread_hash(tables, client, frontend, segment.headers.protocol)
}

#[inline(always)]
pub(super) fn reply_hash<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> ReplyHash {
    ReplyHash::of::<F>(
        &tables.settings().secret,
        (segment.source, segment.source_port),
        (segment.destination, segment.destination_port),
        segment.headers.protocol,
    )
}

/// Finds the flow of a packet from a client, and updates it. Also returns whether there is no other flow of its client's
/// address and port, either: not in [`RequestLookup::Nothing`], where the compiler would overlay it with a flow's fields.
#[inline(always)]
pub fn update_request_flow<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> (Result<RequestLookup<'a, F>, Reason>, bool) {
    let mut alone = true;
    let found = find_by_hash(tables, client_hash_of(tables, segment), |flow, _| {
        alone = false;
        decision_for_request(flow, segment)
    });
    let found = match found {
        Ok(found) => found,
        Err(reason) => return (Err(reason), false),
    };
    let Some(found) = unless_expired(tables, found) else {
        return (Ok(RequestLookup::Nothing), alone);
    };
    if segment.opens() {
        rarely();
        return (Ok(RequestLookup::Opens), false);
    }
    let lookup = match update_request(tables, segment, &found, &found.record) {
        FlowContinuation::GoesOn => RequestLookup::Flow(found),
        FlowContinuation::Anew => RequestLookup::Nothing,
        FlowContinuation::Gone => RequestLookup::Gone(found),
    };
    (Ok(lookup), false)
}

/// Whether a client's packet repeats the SYN of the flow that was found for it.
#[inline(always)]
pub(super) fn repeated_syn<F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &T,
    segment: &Segment<F>,
    found: &LocatedFlow<'_, F, R>,
    kind: FlowKind,
) -> RepeatedSyn {
    let Segment { headers, signal, .. } = segment;
    let (flow, idle) = ((found.state(), found.track()), found.idle_time(tables.now()));
    RepeatedSyn::by_flow(kind, flow, idle, headers.protocol, signal)
}

/// Updates the flow that was found for a packet of its client. The flow is released if the packet begins
/// a new one.
#[inline(always)]
pub(super) fn update_request<F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &T,
    segment: &Segment<F>,
    found: &LocatedFlow<'_, F, R>,
    decision: &Decision<F>,
) -> FlowContinuation {
    let continuation =
        check_request_flow(tables, segment, (found.state(), found.track()), decision);
    if let FlowContinuation::Gone = continuation {
        return FlowContinuation::Gone;
    }
    let Segment { headers, signal, .. } = segment;
    if let FlowContinuation::GoesOn = continuation
        && found.note(Direction::Forward, headers.protocol, signal, tables.now())
    {
        return FlowContinuation::GoesOn;
    }
    found.release();
    FlowContinuation::Anew
}

/// Updates the flow that was found for a packet of its backend. False if the packet refuses the connection, which the
/// stage [`redispatching`](crate::datapath::stages::redispatching) answers.
#[inline(always)]
#[must_use]
pub fn update_reply<F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &T,
    segment: &Segment<F>,
    found: &LocatedFlow<'_, F, R>,
) -> bool {
    let Segment { headers, signal, .. } = segment;
    found.note(Direction::Reverse, headers.protocol, signal, tables.now())
}

/// The part of the flow table in which a flow is looked for.
#[derive(Clone, Copy)]
pub enum FlowPlace {
    /// The buckets that the client's address and port select.
    ClientBuckets,
    /// The buckets that client and frontend select.
    SpreadBuckets,
    /// The reply index.
    ReplyIndex,
}

/// Finds the flow of a packet from a backend, without updating it. By [`FlowPlace::ClientBuckets`] or
/// [`FlowPlace::ReplyIndex`].
#[inline(always)]
pub fn find_reply<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
    place: FlowPlace,
) -> Result<Option<FlowOf<'a, F>>, Reason> {
    let decide = |flow: &Flow<F>, state| decision_for_reply(flow, state, segment);
    let found = if let FlowPlace::ReplyIndex = place {
        let Some(at) = reply_index::find_reply_location(tables, reply_hash(tables, segment)) else {
            return Ok(None);
        };
        let bucket = tables.flow_bucket(at.bucket()).ok_or(Reason::NoSuchBucket)?;
        conntrack::find_at(bucket, at, decide)
    } else {
        let Segment { headers, destination, destination_port, .. } = *segment;
        let hash = client_hash(tables, destination, destination_port, headers.protocol);
        find_by_hash(tables, hash, decide)?
    };
    Ok(unless_expired(tables, found))
}

/// Whether the reply index may lead to the flow of a packet from a backend: it is to an SNAT port, or to
/// a client with flows in other buckets than its own.
#[inline(always)]
pub fn may_be_indexed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> bool {
    let Segment { destination, destination_port, headers, .. } = *segment;
    tables.settings().has_snat_port(destination_port)
        || is_crowded(tables, client_hash(tables, destination, destination_port, headers.protocol))
}

/// The flow that was found, unless it has expired.
#[inline(always)]
pub(super) fn unless_expired<'a, F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &T,
    found: Option<LocatedFlow<'a, F, R>>,
) -> Option<LocatedFlow<'a, F, R>> {
    if let Some(found) = &found
        && found.is_expired(tables.settings(), tables.now())
    {
        found.release();
        return None;
    }
    found
}

/// Looks for a flow in the buckets of a hash, and then in the further ones that it has.
#[inline(always)]
fn find_by_hash<'a, F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &'a T,
    hash: FlowHash,
    mut wanted: impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Result<Option<LocatedFlow<'a, F, R>>, Reason> {
    let found = find_in_buckets(tables, hash, &mut wanted)?;
    match hash.further() {
        Some(further) if found.is_none() => find_in_buckets(tables, further, wanted),
        _ => Ok(found),
    }
}

#[inline(always)]
pub(super) fn find_in_buckets<'a, F: PacketFamily, T: FamilyTables<F>, R>(
    tables: &'a T,
    hash: FlowHash,
    mut wanted: impl FnMut(&Flow<F>, FlowState) -> Option<R>,
) -> Result<Option<LocatedFlow<'a, F, R>>, Reason> {
    let [first, second] = tables.buckets_of(hash);
    let bucket = tables.flow_bucket(first).ok_or(Reason::CorruptTable)?;
    if let Some(found) = conntrack::find_first((first, bucket), hash, &mut wanted) {
        return Ok(Some(found));
    }
    let bucket = tables.flow_bucket(second).ok_or(Reason::CorruptTable)?;
    Ok(conntrack::find_entry_in_bucket((second, bucket), hash, wanted))
}

/// Whether the client of a packet may have flows in other buckets than its own.
#[inline(always)]
pub fn has_spread_flows<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> bool {
    let Segment { source, source_port, headers, .. } = *segment;
    is_crowded(tables, client_hash(tables, source, source_port, headers.protocol))
}

/// The function [`Function::EndShadowed`](crate::datapath::Function): ends the flow between the client
/// and the backend of the stored segment, which would translate a reply to it. Returns whether there
/// was one. A stream of datagrams does not end by that: whoever knows its ports could forge the packet.
#[inline(always)]
pub fn end_shadowed<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let Segment { source, source_port, destination, destination_port, headers, .. } = draft.segment;
    let (client, backend) = ((source, source_port), (destination, destination_port));
    let protocol = headers.protocol;
    let hash = client_hash(tables, client.0, client.1, protocol);
    let may_end = |flow: &Flow<F>, state| {
        (state != FlowState::DatagramStream && is_between(flow, client, backend, protocol))
            .then_some(())
    };
    let shadowed = find_by_hash(tables, hash, may_end);
    if let Ok(Some(shadowed)) = shadowed {
        shadowed.release();
        return true;
    }
    if !is_crowded(tables, hash) && !tables.settings().has_snat_port(client.1) {
        return false;
    }
    let hash = ReplyHash::of::<F>(&tables.settings().secret, backend, client, protocol);
    let Some(at) = reply_index::find_reply_location(tables, hash) else { return false };
    let Some(bucket) = tables.flow_bucket(at.bucket() & tables.flow_mask()) else { return false };
    let shadowed = conntrack::find_at(bucket, at, may_end);
    shadowed.inspect(|shadowed| shadowed.release()).is_some()
}

/// The flow's decision for the packet, if the packet is its client's.
#[inline(always)]
pub(super) fn decision_for_request<F: PacketFamily>(
    flow: &Flow<F>,
    segment: &Segment<F>,
) -> Option<Decision<F>> {
    let same = flow.client == segment.source
        && flow.client_port == segment.source_port
        && flow.frontend == segment.destination
        && flow.frontend_port == segment.destination_port
        && flow.protocol == segment.headers.protocol;
    same.then_some(Decision::of_request(flow))
}

/// The flow's decision for the packet, if the packet is its backend's.
#[inline(always)]
pub(super) fn decision_for_reply<F: PacketFamily>(
    flow: &Flow<F>,
    state: FlowState,
    segment: &Segment<F>,
) -> Option<Decision<F>> {
    let client = (segment.destination, segment.destination_port);
    let backend = (segment.source, segment.source_port);
    let same = is_between(flow, client, backend, segment.headers.protocol)
        && !track::belongs_to_newer_connection(
            state,
            flow.kind.has(FlowKind::SNAT),
            &segment.signal,
        );
    same.then(|| Decision::of_reply(flow))
}

/// Whether the flow's backend sees its client under this address and port.
#[inline(always)]
fn is_between<F: PacketFamily>(
    flow: &Flow<F>,
    client: (F::Address, u16),
    backend: (F::Address, u16),
    protocol: u8,
) -> bool {
    flow.snat == client.0
        && flow.snat_port == client.1
        && flow.backend == backend.0
        && flow.backend_port == backend.1
        && flow.protocol == protocol
}

/// What a client's packet is to the flow that it was looked up by.
pub(super) enum FlowContinuation {
    GoesOn,
    /// The packet begins a new flow with the same client and frontend.
    Anew,
    /// The backend is gone.
    Gone,
}

/// Whether a client's packet continues its flow: by the flow's state and track, and by the backend of its decision.
#[inline(always)]
pub(super) fn check_request_flow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    (state, track): (FlowState, u32),
    decision: &Decision<F>,
) -> FlowContinuation {
    let opens = segment.opens();
    if opens && track::may_begin_anew(state, track, segment.headers.protocol, &segment.signal) {
        return FlowContinuation::Anew;
    }
    let generation = decision.backend_generation;
    let backend: Option<Backend<F::Address>> = tables.backend(decision.backend_index);
    let backend = backend.filter(|b| b.protocol != 0 && b.generation as u16 == generation);
    match backend {
        // Datagrams and SYNs without a reply move to another backend at once; connections may continue
        // to a draining one.
        Some(backend)
            if backend.is_draining()
                && (segment.headers.is_datagram() || opens && is_unanswered(state)) =>
        {
            FlowContinuation::Anew
        }
        Some(_) => FlowContinuation::GoesOn,
        // The connection may be that of an earlier owner of the slot, whose node was asked through
        // this backend's: the current owner's node can ask again. Or it is a later one of the same
        // client and port, which began on another node, so that the flow is still here.
        None if (decision.kind.has(FlowKind::TUNNELLED)
            || decision.kind.has(FlowKind::DELIVERED))
            && tables.tunnel_key(TunnelKey::Current) != 0 =>
        {
            FlowContinuation::Anew
        }
        None if !segment.headers.is_datagram() && !opens => FlowContinuation::Gone,
        None => FlowContinuation::Anew,
    }
}

/// Whether nothing was seen of a connection but its SYN.
#[inline(always)]
fn is_unanswered(state: FlowState) -> bool {
    matches!(state, FlowState::SynSent | FlowState::OneWaySyn)
}
