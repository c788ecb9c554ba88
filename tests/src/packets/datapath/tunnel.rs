//! Tunnel packets between nodes, as an independent encoder makes them.

use std::net::{IpAddr, SocketAddr};

use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::hash::{backend_tag, spread};
use lb_common::layout::Forwarding;

use super::ends;
use crate::packets::{Packet, ip_in_ip, udp};

/// The UDP port of GUE tunnels.
pub const PORT: u16 = 6080;

/// A packet in a tunnel between two addresses, without the fields that depend on its flow and its backend.
pub fn through(kind: Forwarding, from: &str, to: &str, packet: &Packet) -> Packet {
    match kind {
        Forwarding::Ipip => ip_in_ip(from, to, packet),
        Forwarding::Gue => {
            let inner = &packet[network(packet)..];
            let ends = [end(from, 0xc000), end(to, PORT)];
            udp(ends[0].as_str(), ends[1].as_str()).payload(inner).no_checksum()
        }
        Forwarding::Masquerade | Forwarding::Auto => panic!("that is not a tunnel"),
    }
}

/// Writes the UDP source port of a flow to the outer header. `flow` is a whole packet of the client.
pub fn of_flow(tunnel: &Packet, kind: Forwarding, flow: &Packet) -> Packet {
    match kind {
        Forwarding::Gue => tunnel.from(end(&source_of(tunnel), source_port(flow)).as_str()),
        _ => tunnel.clone(),
    }
}

fn source_of(packet: &Packet) -> String {
    let (source, _) = ends(packet);
    let source: SocketAddr = source.parse().expect("an end");
    source.ip().to_string()
}

fn end(address: &str, port: u16) -> String {
    let address: IpAddr = address.parse().expect("an address of a case");
    SocketAddr::new(address, port).to_string()
}

/// The UDP source port, the same for all packets of a flow.
pub fn source_port(flow: &Packet) -> u16 {
    let (client, frontend) = ends(flow);
    let [client, frontend] =
        [client, frontend].map(|end| end.parse::<SocketAddr>().expect("an end"));
    let protocol = flow[network(flow) + if client.is_ipv6() { 6 } else { 9 }];
    let hash = match (client, frontend) {
        (SocketAddr::V4(client), SocketAddr::V4(frontend)) => spread::<V4>(
            (*client.ip()).into(),
            client.port(),
            (*frontend.ip()).into(),
            frontend.port(),
            protocol,
        ),
        (SocketAddr::V6(client), SocketAddr::V6(frontend)) => spread::<V6>(
            (*client.ip()).into(),
            client.port(),
            (*frontend.ip()).into(),
            frontend.port(),
            protocol,
        ),
        ends => panic!("{ends:?}"),
    };
    0xc000 | hash as u16
}

/// Writes the tag of the backend to the outer header.
pub fn named(tunnel: &Packet, backend: &str) -> Packet {
    let end: SocketAddr = backend.parse().expect("an end of a case");
    match end {
        SocketAddr::V4(end) => tunnel.id(backend_tag(Address4::from(*end.ip()), end.port())),
        SocketAddr::V6(end) => {
            let tag = backend_tag(Address6::from(*end.ip()), end.port()).to_be_bytes();
            tunnel.with(move |bytes| {
                let label = network(bytes) + 2;
                bytes[label..label + 2].copy_from_slice(&tag);
            })
        }
    }
}

/// The offset of the network header after any VLAN tags.
pub fn network(bytes: &[u8]) -> usize {
    let is_tag = |kind: &&[u8]| kind[..2] == [0x81, 0] || kind[..2] == [0x88, 0xa8];
    14 + 4 * bytes[12..].chunks(4).take_while(is_tag).count()
}
