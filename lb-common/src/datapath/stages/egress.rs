//! A packet that leaves through an interface, possibly a reply from a backend.

use crate::datapath::carried::Decision;
use crate::datapath::forward::lookup::{self, FlowPlace};
use crate::datapath::forward::send::{pass_rewritten, pass_to_client};
use crate::datapath::forward::{clamp, rewrite, stored, untracked};
use crate::datapath::function::Function;
use crate::datapath::handover::{DraftedDecision, NextStage};
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};
use crate::layout::{FlowKind, Reason};
use crate::verifier::rarely;

#[inline(always)]
pub fn process_leaving<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Most egress packets are not replies from backends: a packet of any shape passes uncounted.
    let segment = match parse::parse_frequent_packet::<F, P>(packet, network) {
        Parsed::Segment(segment) => segment,
        Parsed::Icmp => return Verdict::Next(NextStage::ERROR_OUT),
        Parsed::Fragment => return Verdict::Next(NextStage::FRAGMENT_OUT),
        _ => return Verdict::Pass,
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.headers.protocol) {
        return Verdict::Pass;
    }
    process_leaving_segment(packet, tables, &segment)
}

/// A whole packet with ports that leaves: translates it if it is a backend's reply.
#[inline(always)]
fn process_leaving_segment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    let found = match lookup::find_reply(tables, segment, FlowPlace::ClientBuckets) {
        Ok(None) if lookup::may_be_indexed(tables, segment) => {
            lookup::find_reply(tables, segment, FlowPlace::ReplyIndex)
        }
        found => found,
    };
    match found {
        Ok(Some(found)) => {
            if !lookup::update_reply(tables, segment, &found) {
                rarely();
                return Verdict::Next(NextStage::redispatch(tables, found.location()));
            }
            send_reply_to_client(packet, tables, segment, &found.record)
        }
        Ok(None) => without_flow(tables, segment),
        Err(reason) => drop_for(tables, reason),
    }
}

/// A packet with ports that belongs to no flow in the table.
#[inline(always)]
pub fn without_flow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    if untracked::are_recent(tables) {
        rarely();
        stored::store_segment(tables, segment);
        if tables.call(Function::FindUntracked) != 0 {
            return Verdict::Next(NextStage::reply(DraftedDecision::proven()));
        }
    }
    if segment.signal.accepts() {
        // The client has connected to the backend directly: an earlier flow must not translate the
        // packets that follow.
        return Verdict::Next(NextStage::SHADOW);
    }
    pass_for(tables, Reason::NoFlow)
}

/// Translates the packet of the stored segment as the draft says.
#[inline(always)]
pub fn send_stored_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match (tables.draft(), stored::read_segment::<F, T>(tables, network)) {
        (Some(draft), Some(segment)) => {
            let verdict = send_reply_to_client(packet, tables, &segment, &draft.decision);
            pass_to_client(packet, tables, draft.decision.kind, verdict)
        }
        _ => drop_for(tables, Reason::CorruptTable),
    }
}

/// Translates a reply, which continues to its client.
#[inline(always)]
fn send_reply_to_client<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Verdict {
    let written = rewrite::rewrite_packet(packet, tables, segment, decision).and_then(|()| {
        let is_tunnelled = decision.kind.has(FlowKind::DELIVERED);
        if is_tunnelled && segment.signal.accepts() && segment.headers.is_tcp() {
            rarely();
            clamp::segment_size::<F, P, T>(packet, tables, segment.headers)
        } else {
            Ok(())
        }
    });
    pass_rewritten(tables, written)
}
