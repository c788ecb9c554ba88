//! A packet that leaves through an interface, possibly a reply from a backend.

use crate::datapath::carried::Decision;
use crate::datapath::forward::{clamp, lookup, rewrite, untracked};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Segment};
use crate::layout::{FlowKind, Reason};

#[inline(always)]
pub fn leave<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Most egress packets are not replies from backends: a packet of any shape passes uncounted.
    let segment = match parse::parse_packet(packet, network) {
        Parsed::Segment(segment) => segment,
        Parsed::Icmp => return Verdict::Next(Stage::ErrorOut),
        Parsed::Fragment => return Verdict::Next(Stage::FragmentOut),
        _ => return Verdict::Pass,
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.headers.protocol) {
        return Verdict::Pass;
    }
    follow(packet, tables, &segment)
}

/// A packet with ports that may be a reply.
#[inline(always)]
pub fn follow<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    let found = match lookup::follow_reply(tables, segment) {
        Ok(None) => lookup::follow_indexed_reply(tables, segment),
        found => found,
    };
    match found {
        Ok(Some(found)) => finish(packet, tables, segment, &found.record),
        Ok(None) => match untracked::of_reply(tables, segment) {
            Some(decision) => finish(packet, tables, segment, &decision),
            // The client has connected to the backend directly: an earlier flow must not translate
            // the packets that follow.
            None if segment.signal.accepts() => Verdict::Next(Stage::Shadow),
            None => pass_for(tables, Reason::NoFlow),
        },
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(always)]
fn finish<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Verdict {
    let written = rewrite::whole(packet, tables, segment, decision).and_then(|()| {
        let is_tunnelled = decision.kind.has(FlowKind::DELIVERED);
        if is_tunnelled && segment.signal.accepts() && segment.headers.is_tcp() {
            clamp::segment_size::<F, P, T>(packet, tables, segment.headers)
        } else {
            Ok(())
        }
    });
    match written {
        Ok(()) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}
