//! A packet's segment in the draft, where functions of their own and the next stages read it.

use crate::datapath::function::PacketFunction;
use crate::datapath::segment::{Headers, OFFSETS, Segment};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};

/// The results of [`PacketFunction::Parse`].
const SEGMENT: u32 = 1;
const FRAGMENT: u32 = 2;
const ICMP: u32 = 3;
const TUNNEL: u32 = 4;
const OTHER: u32 = 5;

/// Parses a packet that may be a first fragment, and keeps its segment for later functions and stages.
#[inline(always)]
pub fn parse_segment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> Parsed<F> {
    match packet.call::<F>(PacketFunction::Parse, network, || {
        parse_stored::<F, P, T>(packet, tables, network)
    }) {
        SEGMENT => read_segment(tables, network).map_or(Parsed::Malformed, Parsed::Segment),
        FRAGMENT => Parsed::Fragment,
        ICMP => Parsed::Icmp,
        TUNNEL => Parsed::Tunnel,
        OTHER => Parsed::Other,
        _ => Parsed::Malformed,
    }
}

/// The function [`PacketFunction::Parse`].
#[inline(always)]
pub fn parse_stored<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> u32 {
    match parse::parse_whole_or_first::<F, P>(packet, network) {
        Parsed::Segment(segment) => {
            store_segment(tables, &segment);
            SEGMENT
        }
        Parsed::Fragment => FRAGMENT,
        Parsed::Icmp => ICMP,
        Parsed::Tunnel => TUNNEL,
        Parsed::Other => OTHER,
        Parsed::Malformed => 0,
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
