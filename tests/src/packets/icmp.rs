//! ICMP and ICMPv6: echoes, and errors with the packet that they quote.

use super::description::{Body, Transport};
use super::make::datagram;
use super::{Endpoint, Packet};

/// A message of any type. The payload follows the header of 8 bytes.
pub fn icmp(
    source: impl Into<Endpoint>,
    destination: impl Into<Endpoint>,
    kind: u8,
    code: u8,
) -> Packet {
    datagram(source.into(), destination.into(), Transport::Icmp { kind, code, rest: [0; 4] })
}

/// An echo request with identifier 0x1234 and sequence number 1.
pub fn icmp_echo(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Packet {
    echo(source.into(), destination, (8, 128))
}

pub fn icmp_echo_reply(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Packet {
    echo(source.into(), destination, (0, 129))
}

/// An error to the sender of the quoted packet. Type, code and the second half of the header depend
/// on the family.
pub fn icmp_error(
    router: impl Into<Endpoint>,
    quoted: &Packet,
    kind: u8,
    code: u8,
    rest: u32,
) -> Packet {
    icmp(router, quoted.ip().source, kind, code).rest(rest.to_be_bytes()).change_ip(|ip| {
        ip.body = Body::Packet { inner: Box::new(quoted.clone()), transport_bytes: None };
    })
}

/// Destination unreachable, with the code of the quoted packet's family.
pub fn icmp_unreachable(router: impl Into<Endpoint>, quoted: &Packet, code: u8) -> Packet {
    icmp_error(router, quoted, by_family(quoted, 3, 1), code, 0)
}

/// The error of a host without a listener on the port.
pub fn port_unreachable(router: impl Into<Endpoint>, quoted: &Packet) -> Packet {
    icmp_unreachable(router, quoted, by_family(quoted, 3, 4))
}

/// Fragmentation needed (IPv4) or packet too big (IPv6).
pub fn packet_too_big(router: impl Into<Endpoint>, quoted: &Packet, mtu: u16) -> Packet {
    let (kind, code) = by_family(quoted, (3, 4), (2, 0));
    icmp_error(router, quoted, kind, code, mtu.into())
}

/// The TTL or hop limit was exceeded.
pub fn time_exceeded(router: impl Into<Endpoint>, quoted: &Packet) -> Packet {
    icmp_error(router, quoted, by_family(quoted, 11, 3), 0, 0)
}

impl Packet {
    /// The identifier and the sequence number of an echo.
    pub fn echo(&self, id: u16, sequence: u16) -> Self {
        self.rest((u32::from(id) << 16 | u32::from(sequence)).to_be_bytes())
    }

    /// The second half of the header.
    pub fn rest(&self, bytes: [u8; 4]) -> Self {
        self.change_ip(|ip| match &mut ip.transport {
            Transport::Icmp { rest, .. } => *rest = bytes,
            _ => panic!("this is not ICMP"),
        })
    }
}

fn echo(source: Endpoint, destination: impl Into<Endpoint>, (v4, v6): (u8, u8)) -> Packet {
    let kind = if source.address.is_ipv4() { v4 } else { v6 };
    icmp(source.address, destination, kind, 0).echo(0x1234, 1)
}

fn by_family<T>(packet: &Packet, v4: T, v6: T) -> T {
    if packet.ip().source.is_ipv4() { v4 } else { v6 }
}
