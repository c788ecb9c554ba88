//! A packet between a client and a backend that bypasses Services. An earlier flow between the two
//! must not translate a reply to it.

use crate::datapath::forward::stored;
use crate::datapath::function::Function;
use crate::datapath::segment::Segment;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, pass_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{PacketFamily, Parsed};
use crate::layout::Reason;

/// Ends the earlier flow. The packet is a datagram to a backend, or a backend's SYN-ACK for a
/// connection that belongs to no Service.
#[inline(always)]
pub fn end_shadowed_flow<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Later fragments have no ports.
    let Parsed::Segment(segment) = stored::parse_segment::<F, P, T>(packet, tables, network) else {
        return Verdict::Pass;
    };
    if segment.headers.is_datagram() {
        tables.call(Function::EndShadowed);
        return Verdict::Pass;
    }
    // As the client sends.
    let segment = Segment {
        source: segment.destination,
        source_port: segment.destination_port,
        destination: segment.source,
        destination_port: segment.source_port,
        ..segment
    };
    stored::store_segment(tables, &segment);
    tables.call(Function::EndShadowed);
    pass_for(tables, Reason::NoFlow)
}
