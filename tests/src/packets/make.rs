//! Constructors of packets, one for each protocol. The family is that of the addresses; mixed families
//! panic.

use etherparse::{ArpEthIpv4Packet, ArpOperation, IpNumber, TcpHeader};

use super::description::{Body, Content, Datagram, Description, Ethernet, Transport};
use super::{Endpoint, Mac, Packet};

/// The default source of packets.
pub const CLIENT_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xc1]);
/// The default destination of packets.
pub const NODE_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0x0d]);

/// A segment without flags, with sequence number 1 and acknowledgment number 2, as either side sends
/// after a handshake of such segments.
pub fn tcp(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Packet {
    let (source, destination) = (source.into(), destination.into());
    let mut header = TcpHeader::new(port(source), port(destination), 1, 64240);
    header.acknowledgment_number = 2;
    datagram(source, destination, Transport::Tcp(header))
}

pub fn udp(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Packet {
    let (source, destination) = (source.into(), destination.into());
    let transport =
        Transport::Udp { source: port(source), destination: port(destination), checksum: true };
    datagram(source, destination, transport)
}

/// An INIT chunk, or a DATA chunk once it has a payload.
pub fn sctp(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Packet {
    let (source, destination) = (source.into(), destination.into());
    let transport =
        Transport::Sctp { source: port(source), destination: port(destination), tag: 1, chunk: 1 };
    datagram(source, destination, transport)
}

/// A packet of any protocol; its payload follows the IP header.
pub fn ip(source: impl Into<Endpoint>, destination: impl Into<Endpoint>, protocol: u8) -> Packet {
    datagram(source.into(), destination.into(), Transport::Other(protocol))
}

/// A tunnel packet: the inner packet without its Ethernet header, in an outer packet of either
/// family.
pub fn ip_in_ip(
    source: impl Into<Endpoint>,
    destination: impl Into<Endpoint>,
    inner: &Packet,
) -> Packet {
    let protocol = if inner.ip().source.is_ipv4() { IpNumber::IPV4 } else { IpNumber::IPV6 };
    ip(source, destination, protocol.0).change_ip(|ip| {
        ip.body = Body::Packet { inner: Box::new(inner.clone()), transport_bytes: None }
    })
}

/// A request for the link-layer address of the target.
pub fn arp(sender: impl Into<Endpoint>, target: impl Into<Endpoint>) -> Packet {
    let (sender, target) = (sender.into(), target.into());
    arp_message(1, (CLIENT_MAC, sender), (Mac([0; 6]), target)).macs(CLIENT_MAC, [0xff; 6])
}

/// Any message of ARP, from its sender to the machine with the target's link-layer address.
pub fn arp_message(
    operation: u16,
    sender: (Mac, impl Into<Endpoint>),
    target: (Mac, impl Into<Endpoint>),
) -> Packet {
    let ipv4 = |endpoint: Endpoint| match endpoint.address {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(_) => panic!("ARP is for IPv4"),
    };
    frame(Content::Arp(ArpEthIpv4Packet {
        operation: ArpOperation(operation),
        sender_mac: sender.0.0,
        sender_ipv4: ipv4(sender.1.into()),
        target_mac: target.0.0,
        target_ipv4: ipv4(target.1.into()),
    }))
    .macs(sender.0, target.0)
}

/// Exactly these bytes.
pub fn raw(bytes: &[u8]) -> Packet {
    frame(Content::Raw(bytes.to_vec()))
}

pub fn datagram(source: Endpoint, destination: Endpoint, transport: Transport) -> Packet {
    frame(Content::Ip(Datagram {
        source: source.address,
        destination: destination.address,
        ttl: 64,
        tos: 0,
        id: 0x1d1d,
        dont_fragment: true,
        options: Vec::new(),
        extensions: Vec::new(),
        fragment: None,
        transport,
        body: Body::Bytes(Vec::new()),
    }))
}

fn frame(content: Content) -> Packet {
    let ethernet = Ethernet { source: CLIENT_MAC, destination: NODE_MAC, tags: Vec::new() };
    Packet::new(Description { ethernet, content, edits: Vec::new() })
}

fn port(endpoint: Endpoint) -> u16 {
    endpoint.port.unwrap_or_else(|| panic!("{} needs a port", endpoint.address))
}
