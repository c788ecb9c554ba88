//! Finding the flow of a stored segment, with the result in the draft, where later functions and
//! stages read it.

use super::lookup::{
    Judgement, check_request_flow, client_hash, client_hash_of, decision_for_reply,
    decision_for_request, find_in_buckets, has_spread_flows, reply_hash, spread_hash_of,
    unless_expired,
};
use crate::conntrack::{self, Found, is_crowded, reply_index};
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::function::{Function, reason_in, result_of};
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::hash::FlowHash;
use crate::layout::{Direction, FlowKind, Reason};

/// The outcome of a lookup whose result is in the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Nothing,
    Found,
    Failed(Reason),
}

impl Carried {
    /// The outcome as one number: BPF functions return no more.
    #[inline(always)]
    pub fn number(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Found => 1,
            Self::Failed(reason) => result_of(reason),
        }
    }

    #[inline(always)]
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::Found,
            _ => Self::Failed(reason_in(number)),
        }
    }

    /// Runs one of the functions that look for flows.
    #[inline(always)]
    pub fn call<F: PacketFamily, T: FamilyTables<F>>(tables: &T, function: Function) -> Self {
        Self::from_number(tables.call(function))
    }
}

/// A flow whose decision is in the draft.
type Kept<'a, F> = Found<'a, F, ()>;

/// Finds the flow of the stored segment, of a client, in the client's buckets, and updates its state. A
/// flow whose backend is gone is [`Reason::BackendGone`], and released if this hook can notify the
/// client.
#[inline(always)]
pub fn find_and_update_request<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    resolves: bool,
) -> Carried {
    let carried = find_request(tables);
    update_found_request(tables, carried, resolves)
}

/// Finds the flow of the stored segment, of a client, in the buckets of a hash, as [`find_and_update_request`] does.
#[inline(always)]
pub fn follow_hashed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
    resolves: bool,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.hash = hash;
    let carried = Carried::call(tables, Function::FindHashed);
    update_found_request(tables, carried, resolves)
}

/// Finds the flow of a segment of a client in the two buckets of a hash, as [`find_and_update_request`] does,
/// without calls of functions: for packets of established connections.
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
    match check_request_flow(tables, segment, (found.state(), found.track()), &draft.decision) {
        Judgement::GoesOn => {}
        Judgement::Anew => {
            found.release();
            return Carried::Nothing;
        }
        Judgement::Gone => {
            if resolves {
                found.release();
            }
            return Carried::Failed(Reason::BackendGone);
        }
    }
    let Segment { headers, signal, .. } = segment;
    if !found.note(Direction::Forward, headers.protocol, signal, tables.now()) {
        found.release();
        return Carried::Nothing;
    }
    Carried::Found
}

#[inline(always)]
fn update_found_request<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    found: Carried,
    resolves: bool,
) -> Carried {
    if found != Carried::Found {
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

/// The function [`Function::FollowFound`].
#[inline(always)]
pub fn follow_found<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    // Another CPU may have replaced it meanwhile.
    let Some(found) = conntrack::flow_at(bucket, draft.at) else { return Carried::Nothing };
    let segment = &draft.segment;
    match check_request_flow(tables, segment, (found.state(), found.track()), &draft.decision) {
        Judgement::GoesOn => {}
        Judgement::Anew => {
            found.release();
            return Carried::Nothing;
        }
        Judgement::Gone => return Carried::Failed(Reason::BackendGone),
    }
    let Segment { headers, signal, .. } = segment;
    if !found.note(Direction::Forward, headers.protocol, signal, tables.now()) {
        found.release();
        return Carried::Nothing;
    }
    Carried::Found
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
    let mut carried = find_request(tables);
    if carried == Carried::Nothing && may_be_reply(tables) {
        carried = Carried::call(tables, Function::FindReply);
    }
    if carried == Carried::Nothing
        && let Some(draft) = tables.draft()
        && has_spread_flows(tables, &draft.segment)
    {
        carried = find_spread_request(tables);
    }
    carried
}

/// Finds the flow of the stored segment, of a client, in the client's buckets.
#[inline(always)]
fn find_request<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.hash = client_hash_of(tables, &draft.segment);
    Carried::call(tables, Function::FindHashed)
}

/// Finds the flow of the stored segment, of a client, in the buckets of client and frontend.
#[inline(always)]
fn find_spread_request<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let hash = spread_hash_of(tables, &draft.segment);
    draft.hash = hash;
    let carried = Carried::call(tables, Function::FindHashed);
    let Some(further) = hash.further() else { return carried };
    if carried != Carried::Nothing {
        return carried;
    }
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.hash = further;
    Carried::call(tables, Function::FindHashed)
}

/// The function [`Function::FindHashed`].
#[inline(always)]
pub fn find_hashed<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let [first, second] = tables.buckets_of(draft.hash);
    draft.bucket = first;
    let carried = Carried::call(tables, Function::FindInBucket);
    if carried != Carried::Nothing {
        return carried;
    }
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    draft.bucket = second;
    Carried::call(tables, Function::FindInBucket)
}

/// The function [`Function::FindInBucket`].
#[inline(always)]
pub fn find_in_bucket<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Draft { segment, decision, hash, bucket: index, .. } = draft;
    let Some(bucket) = tables.flow_bucket(*index) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    let found = conntrack::find_first((*index, bucket), *hash, |flow, _| {
        decision_for_request(flow, segment).map(|found| copy_decision(decision, &found))
    });
    let found = unless_expired(tables, found);
    if let Some(found) = &found {
        draft.at = found.location();
    }
    carried(Ok(found))
}

/// Finds the flow of the stored segment, of a backend to a client.
#[inline(always)]
pub fn find_leaving<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Segment { destination, destination_port, headers, .. } = draft.segment;
    let hash = client_hash(tables, destination, destination_port, headers.protocol);
    let [first, second] = tables.buckets_of(hash);
    draft.hash = hash;
    draft.bucket = first;
    let mut carried = Carried::call(tables, Function::FindLeavingInBucket);
    if carried == Carried::Nothing
        && let Some(draft) = tables.draft()
    {
        draft.bucket = second;
        carried = Carried::call(tables, Function::FindLeavingInBucket);
    }
    let is_indexed = tables.settings().has_snat_port(destination_port) || is_crowded(tables, hash);
    if carried == Carried::Nothing && is_indexed {
        carried = Carried::call(tables, Function::FindReply);
    }
    carried
}

/// The function [`Function::FindLeavingInBucket`].
#[inline(always)]
pub fn find_leaving_in_bucket<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    let Draft { segment, decision, hash, bucket: index, .. } = draft;
    let Some(bucket) = tables.flow_bucket(*index) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    let found = conntrack::find_first((*index, bucket), *hash, |flow, state| {
        decision_for_reply(flow, state, segment).map(|found| copy_decision(decision, &found))
    });
    let found = unless_expired(tables, found);
    if let Some(found) = &found {
        draft.at = found.location();
    }
    carried(Ok(found))
}

/// The function [`Function::NoteReply`]: false if another CPU has replaced the flow meanwhile.
#[inline(always)]
pub fn note_drafted_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else { return false };
    let Some(found) = conntrack::flow_at(bucket, draft.at) else { return false };
    let segment = &draft.segment;
    let Segment { headers, signal, .. } = segment;
    let _ = found.note(Direction::Reverse, headers.protocol, signal, tables.now());
    true
}

/// The function [`Function::FindReply`].
#[inline(always)]
pub fn find_drafted_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    carried(keep_indexed_reply(tables, &draft.segment))
}

/// The function [`Function::IsKnown`].
#[inline(always)]
pub fn is_known<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    if leads_here(tables, find_request(tables)) {
        return true;
    }
    let Some(draft) = tables.draft() else { return false };
    has_spread_flows(tables, &draft.segment) && leads_here(tables, find_spread_request(tables))
}

/// Whether a flow was found that leads to a backend on this node.
#[inline(always)]
fn leads_here<F: PacketFamily, T: FamilyTables<F>>(tables: &T, carried: Carried) -> bool {
    let Some(draft) = tables.draft() else { return false };
    carried == Carried::Found && !draft.decision.kind.has(FlowKind::FORWARDED)
}

#[inline(always)]
fn carried<F: PacketFamily>(found: Result<Option<Kept<'_, F>>, Reason>) -> Carried {
    match found {
        Ok(Some(_)) => Carried::Found,
        Ok(None) => Carried::Nothing,
        Err(reason) => Carried::Failed(reason),
    }
}

/// Finds the flow of a packet of a backend by the reply index, and stores the decision in the draft.
#[inline(always)]
fn keep_indexed_reply<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Kept<'a, F>>, Reason> {
    let Some(at) = reply_index::find_reply_location(tables, reply_hash(tables, segment)) else {
        return Ok(None);
    };
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let bucket = tables.flow_bucket(at.bucket()).ok_or(Reason::NoSuchBucket)?;
    let found = conntrack::find_at(bucket, at, |flow, state| {
        decision_for_reply(flow, state, segment)
            .map(|found| copy_decision(&mut draft.decision, &found))
    });
    draft.at = at;
    Ok(unless_expired(tables, found))
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
