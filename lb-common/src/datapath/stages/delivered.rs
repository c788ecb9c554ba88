//! A packet that came through a tunnel, for a backend on this node that another node has chosen.

use super::earlier;
use super::open::{prepare_draft, write_flow};
use crate::conntrack;
use crate::datapath::arrival::Arrival;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::lookup;
use crate::datapath::forward::send;
use crate::datapath::forward::stored;
use crate::datapath::handover::{DraftedFlow, NextStage};
use crate::datapath::select::{self, Connection};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};
use crate::layout::{FlowKind, Reason, TunnelKey};

/// Finds the packet's flow, which must lead to this node, and sends the packet.
#[inline(always)]
pub fn send_from_tunnel<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Verdict {
    let found = find_flow_of_tunnelled::<F, P, T>(packet, tables, network, arrival);
    if found == Carried::Nothing
        && let Some(segment) = stored::read_segment::<F, T>(tables, network)
        && lookup::has_spread_flows(tables, &segment)
    {
        return Verdict::Next(NextStage::spread(tables, arrival));
    }
    send::found_or::<F, P, T>(packet, tables, network, found, || NextStage::accept(tables, arrival))
}

/// Drafts the flow of a decapsulated packet.
#[inline(always)]
pub fn accept_from_tunnel<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Verdict {
    match draft_tunnelled_flow::<F, P, T>(packet, tables, network, arrival) {
        Ok(flow) => Verdict::Next(NextStage::begin(flow)),
        Err(verdict) => verdict,
    }
}

/// Finds the packet's flow, and keeps its segment.
#[inline(never)]
fn find_flow_of_tunnelled<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Carried {
    packet.keep_whole();
    let Parsed::Segment::<F>(segment) = parse::parse_whole_or_first(packet, network) else {
        return Carried::Failed(Reason::Malformed);
    };
    stored::store_segment(tables, &segment);
    let hash = lookup::client_hash_of(tables, &segment);
    let carried = carry::follow_at_once(tables, &segment, hash, packet.resolves());
    unless_forwarded::<F, T>(tables, carried, arrival)
}

/// The flow of a packet that came through a tunnel. It is never forwarded to another node, or it
/// could loop, except to one that is asked about it ([`earlier`]). A flow that would do so is
/// released if a new flow could replace it. If it is protected it stays, and the packet, which may
/// be forged without a key, is dropped.
#[inline(always)]
pub fn unless_forwarded<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    carried: Carried,
    arrival: Arrival,
) -> Carried {
    let Some(draft) = tables.draft() else { return Carried::Failed(Reason::CorruptTable) };
    if !carried.is_found() || !draft.decision.kind.has(FlowKind::FORWARDED) {
        return carried;
    }
    if draft.decision.kind.has(FlowKind::TUNNELLED) && tables.tunnel_key(TunnelKey::Current) != 0 {
        return earlier::may_follow::<F, T>(tables, carried, arrival);
    }
    let Some(bucket) = tables.flow_bucket(draft.at.bucket()) else {
        return Carried::Failed(Reason::CorruptTable);
    };
    if conntrack::evict_at(bucket, draft.at, tables.settings(), tables.now()) {
        Carried::Nothing
    } else {
        Carried::Failed(Reason::NoSuchTarget)
    }
}

/// Drafts the flow to the backend that the packet's tag names.
#[inline(always)]
fn draft_tunnelled_flow<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Result<DraftedFlow, Verdict> {
    let Parsed::Segment(segment) = stored::parse_segment::<F, P, T>(packet, tables, network) else {
        return Err(drop_for(tables, Reason::Malformed));
    };
    let connection = Connection::by(&segment);
    let found = select::find_frontend(tables, &connection).and_then(|frontend| {
        // The tag of a returned packet names no backend here.
        if earlier::may_have_moved(tables, &segment, &frontend) || arrival.mark().is_returned() {
            return Ok(None);
        }
        let choice =
            select::find_tunnel_target(tables, &connection, &frontend, arrival.tag().into())?;
        Ok(Some((frontend.service_port, choice)))
    });
    let (service_port, choice) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Err(Verdict::Next(NextStage::earlier(tables, arrival))),
        Err(reason) => return Err(drop_for(tables, reason)),
    };
    let Some(draft) = tables.draft() else {
        return Err(drop_for(tables, Reason::CorruptTable));
    };
    draft.hop = 0;
    write_flow(&mut draft.flow, &connection, &choice, service_port, None);
    draft.flow.kind = FlowKind::DELIVERED;
    // The node that chose the backend stores the client's affinity.
    Ok(prepare_draft(tables, draft, &segment, false))
}
