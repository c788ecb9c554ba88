//! Finding the flow of a stored segment, with the result in the draft, where later functions and
//! stages read it.

use super::lookup::{
    FlowContinuation, FlowPlace, client_hash, client_hash_of, decision_for_reply,
    decision_for_request, find_in_buckets, has_spread_flows, may_be_indexed, repeated_syn,
    reply_hash, spread_hash_of, unless_expired, update_reply, update_request,
};
use crate::conntrack::{self, LocatedFlow, reply_index};
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::function::{Function, reason_in, result_of};
use crate::datapath::handover::DraftedDecision;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::hash::FlowHash;
use crate::layout::{Direction, FlowKind, Reason};

/// The outcome of a lookup whose result is in the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Nothing,
    Found(DraftedDecision),
    Failed(Reason),
}

impl Carried {
    const FOUND: Self = Self::Found(DraftedDecision::proven());

    #[inline(always)]
    pub fn is_found(self) -> bool {
        matches!(self, Self::Found(_))
    }

    /// The outcome as one number: BPF functions return no more.
    #[inline(always)]
    pub fn number(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Found(_) => 1,
            Self::Failed(reason) => result_of(reason),
        }
    }

    #[inline(always)]
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::FOUND,
            _ => Self::Failed(reason_in(number)),
        }
    }

    /// Runs one of the functions that look for flows.
    #[inline(always)]
    pub fn call<F: PacketFamily, T: FamilyTables<F>>(tables: &T, function: Function) -> Self {
        Self::from_number(tables.call(function))
    }
}

/// Finds the flow of the stored segment. Updates nothing.
#[inline(always)]
pub fn find_stored<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    direction: Direction,
    place: FlowPlace,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let segment = &draft.segment;
    match (direction, place) {
        (_, FlowPlace::ReplyIndex) => Carried::call(tables, Function::FindReply),
        (Direction::Forward, FlowPlace::ClientBuckets) => {
            find_by_stored_hash(tables, client_hash_of(tables, segment))
        }
        (Direction::Forward, FlowPlace::SpreadBuckets) => {
            let hash = spread_hash_of(tables, segment);
            let carried = find_by_stored_hash(tables, hash);
            match hash.further() {
                Some(further) if carried == Carried::Nothing => {
                    find_by_stored_hash(tables, further)
                }
                _ => carried,
            }
        }
        // Of flows in other buckets, the reply index has the location.
        (Direction::Reverse, _) => {
            let Segment { destination, destination_port, headers, .. } = *segment;
            draft.hash = client_hash(tables, destination, destination_port, headers.protocol);
            find_in_both_buckets(tables, Function::FindLeavingInBucket)
        }
    }
}

/// Finds the flow of the stored segment, of a client, in the two buckets of a hash.
#[inline(always)]
fn find_by_stored_hash<F: PacketFamily, T: FamilyTables<F>>(tables: &T, hash: FlowHash) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.hash = hash;
    Carried::call(tables, Function::FindHashed)
}

/// Runs a function that searches one bucket for both buckets of the stored hash.
#[inline(always)]
fn find_in_both_buckets<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    search: Function,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let [first, second] = tables.buckets_of(draft.hash);
    draft.bucket = first;
    let carried = Carried::call(tables, search);
    if carried != Carried::Nothing {
        return carried;
    }
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.bucket = second;
    Carried::call(tables, search)
}

/// The function [`Function::FindHashed`].
#[inline(always)]
pub fn find_hashed<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    find_in_both_buckets(tables, Function::FindInBucket)
}

/// The functions [`Function::FindInBucket`] and [`Function::FindLeavingInBucket`]: find the flow of the
/// stored segment, of a client or of a backend, in the stored bucket.
#[inline(always)]
pub fn find_in_bucket<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    direction: Direction,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Draft { segment, decision, hash, bucket: index, .. } = draft;
    let Some(bucket) = tables.flow_bucket(*index) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    let found = conntrack::find_first((*index, bucket), *hash, |flow, state| {
        let found = match direction {
            Direction::Forward => decision_for_request(flow, segment),
            Direction::Reverse => decision_for_reply(flow, state, segment),
        };
        found.map(|found| copy_decision(decision, &found))
    });
    keep_location(draft, unless_expired(tables, found))
}

/// The function [`Function::FindReply`]: finds the flow of the stored segment, of a backend, by the reply
/// index.
#[inline(always)]
pub fn find_drafted_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Draft { segment, decision, .. } = draft;
    let Some(at) = reply_index::find_reply_location(tables, reply_hash(tables, segment)) else {
        return Carried::Nothing;
    };
    let Some(bucket) = tables.flow_bucket(at.bucket()) else {
        return Carried::Failed(Reason::NoSuchBucket);
    };
    let found = conntrack::find_at(bucket, at, |flow, state| {
        decision_for_reply(flow, state, segment).map(|found| copy_decision(decision, &found))
    });
    keep_location(draft, unless_expired(tables, found))
}

/// The outcome of a lookup whose decision is in the draft, where the flow's location belongs, too.
#[inline(always)]
fn keep_location<F: PacketFamily>(
    draft: &mut Draft<F>,
    found: Option<LocatedFlow<'_, F, ()>>,
) -> Carried {
    match found {
        Some(found) => {
            draft.at = found.location();
            Carried::FOUND
        }
        None => Carried::Nothing,
    }
}

/// Finds the flow of a segment of a client in the two buckets of a hash, and updates it as
/// [`update_found_request`] does, without calls of functions: for packets of established connections.
#[inline(always)]
pub fn follow_at_once<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    hash: FlowHash,
    resolves: bool,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let decision = &mut draft.decision;
    let found = find_in_buckets(tables, hash, |flow, _| {
        decision_for_request(flow, segment).map(|found| copy_decision(decision, &found))
    });
    let found = match found.map(|found| unless_expired(tables, found)) {
        Ok(Some(found)) => found,
        Ok(None) => return Carried::Nothing,
        Err(reason) => return Carried::Failed(reason),
    };
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.at = found.location();
    let continuation = update_request(tables, segment, &found, &draft.decision);
    if let FlowContinuation::Gone = continuation
        && resolves
    {
        found.release();
    }
    carried_by(continuation)
}

/// Finds the flow of the stored segment, of a client, in the two buckets of a hash, and updates it as
/// [`update_found_request`] does.
#[inline(always)]
pub fn follow_hashed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
    resolves: bool,
) -> Carried {
    update_found_request(tables, find_by_stored_hash(tables, hash), resolves)
}

/// Updates the flow that was found for the stored segment, of a client, if one was. A flow whose backend
/// is gone is [`Reason::BackendGone`], and released if this hook can notify the client.
#[inline(always)]
pub fn update_found_request<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    found: Carried,
    resolves: bool,
) -> Carried {
    if !found.is_found() {
        return found;
    }
    let carried = Carried::call(tables, Function::FollowFound);
    if resolves
        && carried == Carried::Failed(Reason::BackendGone)
        && let Some(draft) = tables.draft()
        && let Some(bucket) = tables.flow_bucket(draft.at.bucket())
    {
        conntrack::release_at(bucket, draft.at);
    }
    carried
}

/// The function [`Function::FollowFound`]. [`Reason::Moved`]: the packet repeats the flow's SYN, and the stage
/// [`redispatching`](crate::datapath::stages::redispatching) comes next.
#[inline(always)]
pub fn follow_found<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    // Another CPU may have replaced it meanwhile.
    let Some(found) = conntrack::flow_at(bucket, draft.at) else { return Carried::Nothing };
    if repeated_syn(tables, &draft.segment, &found, draft.decision.kind).exists() {
        return Carried::Failed(Reason::Moved);
    }
    carried_by(update_request(tables, &draft.segment, &found, &draft.decision))
}

/// The outcome of a lookup that has found a flow, which may not be the packet's.
#[inline(always)]
fn carried_by(continuation: FlowContinuation) -> Carried {
    match continuation {
        FlowContinuation::GoesOn => Carried::FOUND,
        FlowContinuation::Anew => Carried::Nothing,
        FlowContinuation::Gone => Carried::Failed(Reason::BackendGone),
    }
}

/// The function [`Function::NoteReply`]: false if another CPU has replaced the flow meanwhile.
#[inline(always)]
pub fn note_drafted_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else { return false };
    let Some(found) = conntrack::flow_at(bucket, draft.at) else { return false };
    // A fragment of a reset, or one in an ICMP error's quote: it refuses the connection like any other.
    if !update_reply(tables, &draft.segment, &found) {
        found.refuse(false);
    }
    true
}

/// Whether the stored segment may be a reply to an SNAT address.
#[inline(always)]
pub fn may_be_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    tables
        .draft()
        .is_some_and(|draft| tables.settings().has_snat_port(draft.segment.destination_port))
}

/// The function [`Function::FindArriving`]: finds the flow of the stored segment of either direction,
/// without updating it.
#[inline(always)]
pub fn find_arriving<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let mut carried = find_stored(tables, Direction::Forward, FlowPlace::ClientBuckets);
    if carried == Carried::Nothing && may_be_reply(tables) {
        carried = find_stored(tables, Direction::Reverse, FlowPlace::ReplyIndex);
    }
    if carried == Carried::Nothing
        && let Some(draft) = tables.draft()
        && has_spread_flows(tables, &draft.segment)
    {
        carried = find_stored(tables, Direction::Forward, FlowPlace::SpreadBuckets);
    }
    carried
}

/// Finds the flow of the stored segment, of a backend to a client, without updating it.
#[inline(always)]
pub fn find_leaving<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let carried = find_stored(tables, Direction::Reverse, FlowPlace::ClientBuckets);
    if carried == Carried::Nothing
        && let Some(draft) = tables.draft()
        && may_be_indexed(tables, &draft.segment)
    {
        return find_stored(tables, Direction::Reverse, FlowPlace::ReplyIndex);
    }
    carried
}

/// The function [`Function::IsKnown`].
#[inline(always)]
pub fn is_known<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    if leads_here(tables, find_stored(tables, Direction::Forward, FlowPlace::ClientBuckets)) {
        return true;
    }
    let Some(draft) = tables.draft() else { return false };
    has_spread_flows(tables, &draft.segment)
        && leads_here(tables, find_stored(tables, Direction::Forward, FlowPlace::SpreadBuckets))
}

/// Whether a flow was found that leads to a backend on this node.
#[inline(always)]
fn leads_here<F: PacketFamily, T: FamilyTables<F>>(tables: &T, carried: Carried) -> bool {
    let Some(draft) = tables.draft() else { return false };
    carried.is_found() && !draft.decision.kind.has(FlowKind::FORWARDED)
}

/// Copies a decision into the draft. Field by field: a whole copy would be built on the stack
/// first.
#[inline(always)]
pub(super) fn copy_decision<F: PacketFamily>(kept: &mut Decision<F>, decision: &Decision<F>) {
    kept.source.address = decision.source.address;
    kept.source.port = decision.source.port;
    kept.destination.address = decision.destination.address;
    kept.destination.port = decision.destination.port;
    kept.service_port = decision.service_port;
    kept.backend_index = decision.backend_index;
    kept.backend_generation = decision.backend_generation;
    kept.direction = decision.direction;
    kept.kind = decision.kind;
}
