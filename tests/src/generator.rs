//! The benchmarks' BPF object, which generates packets from templates.

use aya::Pod;
use lb_common::bench::{End, HEADERS, Template};

use crate::packet::Packet;

/// Empty if the tests were built without it.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BENCH_OBJECT"));

/// For maps.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Plain<T>(pub T);

// SAFETY: `repr(C)` integers without padding, asserted beside `Template`.
unsafe impl Pod for Plain<Template> {}
// SAFETY: two integers.
unsafe impl Pod for Plain<End> {}

/// The position of the client in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// Makes a template of a packet. Its client varies over `clients`, a power of two.
pub fn template(packet: &Packet, side: Side, clients: u32) -> Template {
    assert!(packet.len() >= HEADERS && clients.is_power_of_two());
    let mut headers = [0; HEADERS / 8];
    for (word, bytes) in headers.iter_mut().zip(packet.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8"));
    }
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
        headers,
        address_offset: address as u32,
        port_offset: port as u32,
        first_address: u32::from_be_bytes(octets),
        client_mask: clients - 1,
        listed: 0,
        reserved: 0,
    }
}

/// Makes a template whose source address and destination port are those of the list of ends, which
/// has this number of elements, a power of two: replies of backends to SNAT ports.
pub fn template_of_list(packet: &Packet, ends: u32) -> Template {
    let Template { port_offset, .. } = template(packet, Side::Destination, ends);
    Template { port_offset, listed: 1, ..template(packet, Side::Source, ends) }
}
