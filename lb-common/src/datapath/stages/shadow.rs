//! A packet between a client and a backend that bypasses Services. An earlier flow between the two
//! must not translate a reply to it.

use crate::datapath::forward::lookup;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, pass_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};
use crate::header::protocol;
use crate::layout::Reason;

/// Ends the earlier flow. The packet is a datagram to a backend, or a backend's SYN-ACK for a
/// connection that belongs to no Service.
#[inline(always)]
pub fn end<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Parsed::Segment::<F>(segment) = parse::parse_packet(packet, network) else {
        return Verdict::Pass;
    };
    let source = (segment.source, segment.source_port);
    let destination = (segment.destination, segment.destination_port);
    let protocol = segment.headers.protocol;
    if protocol == protocol::UDP {
        lookup::end_shadowed(tables, source, destination, protocol);
        return Verdict::Pass;
    }
    lookup::end_shadowed(tables, destination, source, protocol);
    pass_for(tables, Reason::NoFlow)
}
