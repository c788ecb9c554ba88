//! Tunnel packets between nodes, for `tunnels_in` and `tunnels_out`.

use std::net::SocketAddr;

use lb_common::layout::Forwarding;

use super::Ends;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, device, mac, neighbour};
use crate::packets::datapath::{Conversation, Service};
use crate::packets::{Mac, Packet, packet_too_big};

pub(super) use crate::packets::datapath::tunnel::{PORT, named, network, of_flow, through};

/// Both kinds, with a client port for each.
pub(super) const KINDS: [(Forwarding, u16); 2] =
    [(Forwarding::Ipip, 40000), (Forwarding::Gue, 41000)];

/// The address of the next hop to other nodes.
pub(super) const ROUTER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);

/// The packet in a tunnel from another node to this one.
pub(super) fn arriving(at: &Ends, kind: Forwarding, packet: &Packet, backend: &str) -> Packet {
    named(&through(kind, at.elsewhere, at.node, packet), backend)
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
    let tunnel = through(kind, &own_address(at), at.elsewhere, &packet.ttl(63));
    named(&of_flow(&tunnel, kind, flow).macs(mac(INSIDE), ROUTER_MAC), backend)
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
