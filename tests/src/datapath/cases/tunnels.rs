//! Tunnel packets between nodes, for `tunnels_in` and `tunnels_out`.

use std::net::SocketAddr;

use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::hash::{backend_tag, spread};
use lb_common::layout::Forwarding;

use super::Ends;
use crate::datapath::surroundings::{INSIDE, OUTSIDE, device, mac, neighbour};
use crate::datapath::{Conversation, Service, ends};
use crate::packet::{Mac, Packet, ip_in_ip, packet_too_big, udp};

/// Both kinds, with a client port for each.
pub(super) const KINDS: [(Forwarding, u16); 2] =
    [(Forwarding::Ipip, 40000), (Forwarding::Gue, 41000)];

/// The address of the next hop to other nodes.
pub(super) const ROUTER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);

/// The UDP port of GUE tunnels.
pub(super) const PORT: u16 = 6080;

/// A tunnel packet without the fields that depend on the inner packet.
pub(super) fn tunnel(at: &Ends, kind: Forwarding, from: &str, to: &str, packet: &Packet) -> Packet {
    match kind {
        Forwarding::Ipip => ip_in_ip(from, to, packet),
        Forwarding::Gue => {
            let inner = &packet[network(packet)..];
            let ends = [at.end(from, 0xc000), at.end(to, PORT)];
            udp(ends[0].as_str(), ends[1].as_str()).payload(inner).no_checksum()
        }
        Forwarding::Masquerade | Forwarding::Auto => panic!("that is not a tunnel"),
    }
}

/// The packet in a tunnel from another node to this one.
pub(super) fn arriving(at: &Ends, kind: Forwarding, packet: &Packet, backend: &str) -> Packet {
    named(&tunnel(at, kind, at.elsewhere, at.node, packet), backend)
}

/// The packet in a tunnel from this node to another, when it is transmitted. `flow` is a whole packet of
/// the client.
pub(super) fn leaving(
    at: &Ends,
    kind: Forwarding,
    packet: &Packet,
    flow: &Packet,
    backend: &str,
) -> Packet {
    let from = own_address(at);
    let tunnel = tunnel(at, kind, &from, at.elsewhere, &packet.ttl(63));
    let tunnel = match kind {
        Forwarding::Gue => tunnel.from(at.end(&from, source_port(at, flow)).as_str()),
        _ => tunnel,
    };
    named(&tunnel.macs(mac(INSIDE), ROUTER_MAC), backend)
}

/// The UDP source port, the same for all packets of a flow.
pub(super) fn source_port(at: &Ends, flow: &Packet) -> u16 {
    let (client, frontend) = ends(flow);
    let [client, frontend] =
        [client, frontend].map(|end| end.parse::<SocketAddr>().expect("an end"));
    let protocol = flow[network(flow) + if at.is_v6() { 6 } else { 9 }];
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
pub(super) fn named(tunnel: &Packet, backend: &str) -> Packet {
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
pub(super) fn network(bytes: &[u8]) -> usize {
    let is_tag = |kind: &&[u8]| kind[..2] == [0x81, 0] || kind[..2] == [0x88, 0xa8];
    14 + 4 * bytes[12..].chunks(4).take_while(is_tag).count()
}

pub(super) fn address(end: &str) -> String {
    let end: SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}

/// This node's address on the interface to other nodes.
pub(super) fn own_address(at: &Ends) -> String {
    let device = device(INSIDE);
    let v4 = device.v4.map(|address| address.to_string());
    let v6 = device.v6.map(|address| address.to_string());
    (if at.is_v6() { v6 } else { v4 }).expect("devices have both")
}

/// This node has backends that receive packets from tunnels.
pub(super) fn receive(
    c: &mut Conversation,
    at: &Ends,
    kind: Forwarding,
    backends: u16,
) -> Vec<String> {
    c.node_addresses(&[at.node]);
    c.peers(&[at.elsewhere]);
    c.set(&at.web(backends).forwarding(kind));
    c.set(&at.dns(backends).forwarding(kind));
    at.backends(backends)
}

/// The only backend is on another node, to which there is a route.
pub(super) fn send(c: &mut Conversation, at: &Ends, kind: Forwarding) -> String {
    let backend = at.backends(1).remove(0);
    for index in [OUTSIDE, INSIDE] {
        c.device(index, |_| {});
    }
    c.exit(at.elsewhere, neighbour(INSIDE, ROUTER_MAC));
    for service in [at.web(0), at.dns(0)] {
        c.set(&elsewhere(at, service, &backend).forwarding(kind));
    }
    backend
}

pub(super) fn elsewhere(at: &Ends, service: Service, backend: &str) -> Service {
    service.remote_backends(&[backend]).on_node(at.elsewhere)
}

/// A large request in two fragments.
pub(super) fn pieces(question: &Packet, id: u16) -> [Packet; 2] {
    let whole = question.payload(&[7; 2000]).id(id);
    [whole.fragment(..1400), whole.fragment(1400..)]
}

/// A router's error about a packet from the backend to the client.
pub(super) fn error(at: &Ends, request: &Packet) -> Packet {
    packet_too_big(at.elsewhere, &request.reversed().psh_ack().payload(&[7; 1000]), 1280)
}
