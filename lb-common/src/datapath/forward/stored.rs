//! A packet's segment in the draft, where functions of their own and the next stages read it.

use crate::datapath::function::{PacketFunction, function_result};
use crate::datapath::segment::{Headers, OFFSETS, Segment};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};

function_result! {
    /// What [`PacketFunction::Parse`] has found: a [`Parsed`] whose segment is in the draft.
    pub enum ParsedKind {
        Malformed,
        Segment,
        Fragment,
        Icmp,
        Tunnel,
        Other,
    }
    otherwise Malformed
}

/// Parses a packet that may be a first fragment, and keeps its segment for later functions and stages.
#[inline(always)]
pub fn parse_segment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> Parsed<F> {
    let kind = packet.call::<F>(PacketFunction::Parse, network, || {
        parse_stored::<F, P, T>(packet, tables, network).number()
    });
    match ParsedKind::from_number(kind) {
        ParsedKind::Segment => {
            read_segment(tables, network).map_or(Parsed::Malformed, Parsed::Segment)
        }
        ParsedKind::Fragment => Parsed::Fragment,
        ParsedKind::Icmp => Parsed::Icmp,
        ParsedKind::Tunnel => Parsed::Tunnel,
        ParsedKind::Other => Parsed::Other,
        ParsedKind::Malformed => Parsed::Malformed,
    }
}

/// The function [`PacketFunction::Parse`].
#[inline(always)]
pub fn parse_stored<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> ParsedKind {
    match parse::parse_whole_or_first::<F, P>(packet, network) {
        Parsed::Segment(segment) => {
            store_segment(tables, &segment);
            ParsedKind::Segment
        }
        Parsed::Fragment => ParsedKind::Fragment,
        Parsed::Icmp => ParsedKind::Icmp,
        Parsed::Tunnel => ParsedKind::Tunnel,
        Parsed::Other => ParsedKind::Other,
        Parsed::Malformed => ParsedKind::Malformed,
    }
}

/// Stores a segment field by field: a whole copy would be built on the stack first.
#[inline(always)]
pub fn store_segment<F: PacketFamily, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) {
    let Some(draft) = tables.draft() else { return };
    let stored = &mut draft.segment;
    stored.headers.network = segment.headers.network;
    stored.headers.transport = segment.headers.transport;
    stored.headers.protocol = segment.headers.protocol;
    stored.source = segment.source;
    stored.destination = segment.destination;
    stored.source_port = segment.source_port;
    stored.destination_port = segment.destination_port;
    stored.signal = segment.signal;
}

/// The stored segment of a packet whose network header is at `network`.
#[inline(always)]
pub fn read_segment<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    network: usize,
) -> Option<Segment<F>> {
    let stored = &tables.draft()?.segment;
    // To the verifier the stored offset is any number.
    let transport = stored.headers.transport & (OFFSETS - 1);
    let headers = Headers { network, transport, protocol: stored.headers.protocol };
    Some(Segment { headers, ..*stored })
}
