//! Describes a packet for `millrace drops`.

use super::outer::Outer;
use super::packet::Packet;
use super::parse::{self, Parsed};
use crate::family::{Family, V4, V6};
use crate::header::NetworkHeader;
use crate::layout::{PacketEvent, Peer};

/// Copies the fields of the packet's headers into the event, as far as they can be read.
#[inline(always)]
pub fn describe_packet<P: Packet>(packet: &mut P, event: &mut PacketEvent) {
    event.device = packet.device();
    event.length = packet.length();
    event.xdp = u8::from(!packet.resolves());
    let Some(frame) = packet.frame() else { return };
    match frame.ether_type {
        V4::ETHER_TYPE => headers::<V4, P>(packet, frame.network, event),
        V6::ETHER_TYPE => headers::<V6, P>(packet, frame.network, event),
        _ => {}
    }
}

/// One function for each family, for its stack frame.
#[inline(never)]
fn headers<F: Outer, P: Packet>(packet: &mut P, network: usize, event: &mut PacketEvent) {
    packet.keep_whole();
    let Some(header) = packet.header::<F::Header>(network) else { return };
    let (source, destination): (Peer, Peer) = (header.source().into(), header.destination().into());
    event.source = source.address.octets;
    event.destination = destination.address.octets;
    if let Ok(headers) = parse::transport::<F, P>(packet, network)
        && let Parsed::Segment(segment) = parse::segment_of_packet::<F, P>(packet, headers)
    {
        event.protocol = segment.headers.protocol;
        event.source_port = segment.source_port;
        event.destination_port = segment.destination_port;
        event.flags = segment.signal.flags;
    }
}
