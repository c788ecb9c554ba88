//! The benchmarks' BPF object, which generates packets from templates.

use aya::Pod;
use lb_common::bench::{BenchEnd, HEADERS, Template};

use ::tests::packets::Packet;

/// Empty if the tests were built without it.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BENCH_OBJECT"));

/// For maps.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Plain<T>(pub T);

// SAFETY: `repr(C)` integers without padding, asserted beside `Template`.
unsafe impl Pod for Plain<Template> {}
// SAFETY: two integers.
unsafe impl Pod for Plain<BenchEnd> {}

/// The position of the client in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// Makes a template of a packet. Its client varies over `clients`, a power of two.
pub fn packet_template(packet: &Packet, side: Side, clients: u32) -> Template {
    assert!(packet.len() >= HEADERS && clients.is_power_of_two());
    let v6 = packet[packet.network_offset()] >> 4 == 6;
    let address = packet.network_offset()
        + match (v6, side) {
            (false, Side::Source) => 12,
            (false, Side::Destination) => 16,
            (true, Side::Source) => 8 + 12,
            (true, Side::Destination) => 24 + 12,
        };
    let port = packet.transport_offset() + if side == Side::Source { 0 } else { 2 };
    let octets = packet[address..address + 4].try_into().expect("4 octets");
    Template {
        headers: headers_of(packet),
        address_offset: address as u32,
        port_offset: port as u32,
        first_address: u32::from_be_bytes(octets),
        client_mask: clients - 1,
        listed: 0,
        length: packet.len() as u32,
        at_front: 0,
        reserved: 0,
    }
}

fn headers_of(packet: &Packet) -> [u64; HEADERS / 8] {
    let mut headers = [0; HEADERS / 8];
    for (word, bytes) in headers.iter_mut().zip(packet.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8"));
    }
    headers
}

/// The template of a packet that is inside a tunnel.
pub fn tunnelled_template(tunnel: &Packet, packet: &Packet, template: &Template) -> Template {
    let shift = (tunnel.len() - packet.len()) as u32;
    Template {
        headers: headers_of(tunnel),
        address_offset: template.address_offset + shift,
        port_offset: template.port_offset + shift,
        length: tunnel.len() as u32,
        ..*template
    }
}

/// Makes a template whose packets are all equal: what varies is the source's link-layer address, and
/// with one client only once.
pub(crate) fn unvaried_template(packet: &Packet) -> Template {
    const LINK_SOURCE: u32 = 6;
    Template { port_offset: LINK_SOURCE, ..packet_template(packet, Side::Source, 1) }
}

/// Makes a template whose source address and destination port are those of the list of ends, which
/// has this number of elements, a power of two: replies of backends to SNAT ports.
pub(crate) fn template_of_list(packet: &Packet, ends: u32) -> Template {
    let Template { port_offset, .. } = packet_template(packet, Side::Destination, ends);
    Template { port_offset, listed: 1, ..packet_template(packet, Side::Source, ends) }
}
