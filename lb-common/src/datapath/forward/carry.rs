//! Finding the flow of a packet, with the result in the draft, where later stages read it.

use super::lookup::{
    Judgement, find_by_hash, has_spread_flows, hash_of, judge, living, replied, reply_hash,
    requested, spread_hash_of,
};
use crate::conntrack::{self, Found, reply_index};
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Segment};
use crate::hash::FlowHash;
use crate::layout::{Direction, Reason};

/// The outcome of a lookup whose result is in the draft. One number: BPF functions return no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Nothing,
    Found,
    Failed(Reason),
}

/// A flow whose decision is in the draft.
type Kept<'a, F> = Found<'a, F, ()>;

/// Finds the flow of a packet from a client, updates its state, and stores the decision in the
/// draft. A flow whose backend is gone is [`Reason::BackendGone`], and released if this hook can
/// notify the client.
#[inline(always)]
pub fn carry_followed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
    hash: FlowHash,
    resolves: bool,
) -> Carried {
    let found = match keep_request(tables, segment, hash) {
        Ok(Some(found)) => found,
        Ok(None) => return Carried::Nothing,
        Err(reason) => return Carried::Failed(reason),
    };
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    match judge(tables, segment, (found.state(), found.track()), &draft.decision) {
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
    found.note(Direction::Forward, segment.headers.protocol, &segment.signal, tables.now());
    Carried::Found
}

/// The same for a packet of a client, as its headers begin.
#[inline(always)]
pub fn follow_begun<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Carried {
    // Otherwise the compiler passes the packet's bounds instead of the packet: plain numbers, to
    // the verifier.
    packet.leave_by(0);
    let Parsed::Segment::<F>(segment) = parse::begun(packet, network) else {
        return Carried::Failed(Reason::Malformed);
    };
    carry_followed(tables, &segment, hash_of(tables, &segment), packet.resolves())
}

/// Finds the flow of an arriving packet of either direction, and stores the decision in the draft;
/// the flow is not updated. In parts, each with its own stack frame.
#[inline(always)]
pub fn carry_arriving<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Carried {
    let mut carried = carry_request(tables, segment);
    if carried == Carried::Nothing {
        carried = carry_reply(tables, segment);
    }
    if carried == Carried::Nothing {
        carried = carry_spread_request(tables, segment);
    }
    carried
}

#[inline(never)]
fn carry_request<F: PacketFamily, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) -> Carried {
    carried(keep_request(tables, segment, hash_of(tables, segment)))
}

#[inline(never)]
fn carry_spread_request<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Carried {
    if !has_spread_flows(tables, segment) {
        return Carried::Nothing;
    }
    carried(keep_request(tables, segment, spread_hash_of(tables, segment)))
}

#[inline(never)]
fn carry_reply<F: PacketFamily, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) -> Carried {
    carried(keep_snat_reply(tables, segment))
}

/// Finds the flow of a packet from a backend to an SNAT address, updates its state, and stores the
/// decision in the draft.
#[inline(always)]
pub fn carry_followed_reply<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Carried {
    let found = keep_snat_reply(tables, segment);
    if let Ok(Some(found)) = &found {
        found.note(Direction::Reverse, segment.headers.protocol, &segment.signal, tables.now());
    }
    carried(found)
}

#[inline(always)]
fn carried<F: PacketFamily>(found: Result<Option<Kept<'_, F>>, Reason>) -> Carried {
    match found {
        Ok(Some(_)) => Carried::Found,
        Ok(None) => Carried::Nothing,
        Err(reason) => Carried::Failed(reason),
    }
}

/// Finds the flow of a packet from a client, and stores the decision in the draft.
#[inline(always)]
fn keep_request<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
    hash: FlowHash,
) -> Result<Option<Kept<'a, F>>, Reason> {
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let found = find_by_hash(tables, hash, |flow, _| {
        requested(flow, segment).map(|decision| keep(draft, &decision))
    })?;
    let found = living(tables, found);
    if let Some(found) = &found {
        draft.at = found.location();
    }
    Ok(found)
}

/// Finds the flow of a packet to an SNAT address, and stores the decision in the draft.
#[inline(always)]
fn keep_snat_reply<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Result<Option<Kept<'a, F>>, Reason> {
    if !tables.settings().has_snat_port(segment.destination_port) {
        return Ok(None);
    }
    let Some(at) = reply_index::find(tables, reply_hash(tables, segment)) else {
        return Ok(None);
    };
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let bucket = tables.flow_bucket(at.bucket()).ok_or(Reason::NoSuchBucket)?;
    let found = conntrack::find_at(bucket, at, |flow, state| {
        replied(flow, state, segment).map(|decision| keep(draft, &decision))
    });
    draft.at = at;
    Ok(living(tables, found))
}

/// Copies a decision into the draft. Field by field: a whole copy would be built on the stack
/// first.
#[inline(always)]
fn keep<F: PacketFamily>(draft: &mut Draft<F>, decision: &Decision<F>) {
    let kept = &mut draft.decision;
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
