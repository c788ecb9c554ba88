//! Tunnels between nodes: packets leave a tunnel as the client sent them.

use std::net::SocketAddr;

use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::hash::{backend_tag, spread};
use lb_common::layout::{FlowState, Forwarding, Reason};

use super::{Ends, establish};
use crate::datapath::surroundings::{INSIDE, OUTSIDE, device, mac, neighbour, unknown_neighbour};
use crate::datapath::{Conversation, Service, ends};
use crate::packet::{
    CLIENT_MAC, Mac, NODE_MAC, Packet, ip_in_ip, packet_too_big, tcp, time_exceeded, udp,
};

/// Both kinds, with a client port for each.
pub(super) const KINDS: [(Forwarding, u16); 2] =
    [(Forwarding::Ipip, 40000), (Forwarding::Gue, 41000)];

/// The address of the next hop to other nodes.
const ROUTER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);

/// The UDP port of GUE tunnels.
const PORT: u16 = 6080;

/// A tunnel packet without the fields that depend on the inner packet.
fn tunnel(at: &Ends, kind: Forwarding, from: &str, to: &str, packet: &Packet) -> Packet {
    match kind {
        Forwarding::Ipip => ip_in_ip(from, to, packet),
        Forwarding::Gue => {
            let inner = &packet[network(packet)..];
            let ends = [at.end(from, 0xc000), at.end(to, PORT)];
            udp(ends[0].as_str(), ends[1].as_str()).payload(inner).no_checksum()
        }
        Forwarding::Masquerade => panic!("that is not a tunnel"),
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
fn source_port(at: &Ends, flow: &Packet) -> u16 {
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
fn named(tunnel: &Packet, backend: &str) -> Packet {
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

fn address(end: &str) -> String {
    let end: SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}

/// This node's address on the interface to other nodes.
fn own_address(at: &Ends) -> String {
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

fn elsewhere(at: &Ends, service: Service, backend: &str) -> Service {
    service.remote_backends(&[backend]).on_node(at.elsewhere)
}

/// A large request in two fragments.
fn pieces(question: &Packet, id: u16) -> [Packet; 2] {
    let whole = question.payload(&[7; 2000]).id(id);
    [whole.fragment(..1400), whole.fragment(1400..)]
}

/// A router's error about a packet from the backend to the client.
fn error(at: &Ends, request: &Packet) -> Packet {
    packet_too_big(at.elsewhere, &request.reversed().psh_ack().payload(&[7; 1000]), 1280)
}

pub fn a_packet_from_a_tunnel_reaches_the_backend_that_it_names(c: &mut Conversation, at: &Ends) {
    for (kind, first) in KINDS {
        let backends = receive(c, at, kind, 3);
        for (backend, port) in backends.iter().zip(first..) {
            let request = at.to_web(port);
            c.forward(&arriving(at, kind, &request.syn(), backend))
                .becomes(&request.syn().to(backend.as_str()));
            let answer = request.reversed().syn_ack();
            c.reverse(&answer.from(backend.as_str())).becomes(&answer);
            c.forward(&arriving(at, kind, &request.ack(), backend))
                .becomes(&request.ack().to(backend.as_str()));
        }
    }
    assert_eq!(c.flows().states(), [FlowState::Established; 6]);
}

pub fn tc_opens_tunnels_too(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        for packet in [at.to_web(port).syn(), at.to_web(port).ack().payload(&[7; 999])] {
            c.stack(&arriving(at, kind, &packet, &backend)).becomes(&packet.to(backend.as_str()));
        }
        let answer = at.to_web(port).reversed().syn_ack();
        c.reverse(&answer.from(backend.as_str())).becomes(&answer);
    }
}

pub fn a_connection_stays_whatever_backend_later_packets_name(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backends = receive(c, at, kind, 2);
        let request = at.to_web(port);
        c.forward(&arriving(at, kind, &request.syn(), &backends[0]))
            .becomes(&request.syn().to(backends[0].as_str()));
        c.forward(&arriving(at, kind, &request.ack(), &backends[1]))
            .becomes(&request.ack().to(backends[0].as_str()));
    }
}

pub fn tags_and_headers_in_a_tunnel_stay(c: &mut Conversation, at: &Ends) {
    for (kind, first) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        for (number, port) in (0..3).zip(first..) {
            let request = at.to_web(port).syn().ttl(9).tos(0x28);
            let request =
                if at.is_v6() { request.hop_by_hop() } else { request.ip_options(&[1; 4]) };
            let tunnel = arriving(at, kind, &request, &backend);
            let [tunnel, request] = [tunnel, request].map(|packet| match number {
                0 => packet,
                1 => packet.vlan(7),
                _ => packet.qinq(7, 8),
            });
            c.forward(&tunnel).becomes(&request.to(backend.as_str()));
        }
    }
}

pub fn congestion_in_a_tunnel_is_told_on(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let request = at.to_web(port);
        let met = |packet: &Packet| arriving(at, kind, packet, &backend).tos(3);
        let capable = request.syn().tos(2);
        c.forward(&met(&capable)).becomes(&capable.tos(3).to(backend.as_str()));
        c.forward(&met(&request.ack())).is_dropped_for(Reason::Congestion);
        let other = arriving(at, kind, &capable, &backend).tos(2);
        c.forward(&other).becomes(&capable.to(backend.as_str()));
    }
}

pub fn other_tunnels_pass(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let request = at.to_web(port).syn();
        let tunnel = arriving(at, kind, &request, &backend);
        // From an address that is not a node.
        let client = |port| match kind {
            Forwarding::Gue => at.client(port),
            _ => address(&at.client(port)),
        };
        c.forward(&tunnel.from(client(0xc000).as_str())).passes_for(Reason::NotAPeer);
        // Not to a Service.
        for other in [backend.as_str(), at.elsewhere] {
            c.forward(&arriving(at, kind, &request.to(other), &backend))
                .passes_for(Reason::UnknownProtocol);
        }
        // To a port without a Service.
        c.forward(&arriving(at, kind, &request.to(at.cluster(81).as_str()), &backend))
            .passes_for(Reason::UnknownProtocol);
        // The same to an address that is not the node's.
        c.forward(&tunnel.to(client(PORT).as_str())).passes();
        // The inner packet is malformed.
        c.forward(&arriving(at, kind, &request.with(|bytes| bytes[14] = 0x1f), &backend))
            .assert_passed();
        // To an address of a Service, where the port number may belong to a service port.
        if kind == Forwarding::Ipip {
            c.forward(&tunnel.to(at.cluster_address())).passes_for(Reason::UnknownProtocol);
        }
    }
    assert!(c.flows().is_empty());
}

/// Its clients are not mistaken for nodes.
pub fn a_service_may_have_the_port_of_tunnels(c: &mut Conversation, at: &Ends) {
    let backend = receive(c, at, Forwarding::Gue, 1).remove(0);
    c.set(&at.service(PORT, "UDP", 1));
    let question = at.to_dns(40000).to(at.cluster(PORT).as_str());
    c.forward(&question).becomes(&question.to(backend.as_str()));
    c.forward(&question.from(at.end(at.elsewhere, 40000).as_str()))
        .becomes(&question.from(at.end(at.elsewhere, 40000).as_str()).to(backend.as_str()));
}

pub fn packets_in_a_tunnel_for_a_backend_elsewhere_are_dropped(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        receive(c, at, kind, 1);
        let elsewhere = &at.backends(2)[1];
        let request = at.to_web(port).syn();
        c.forward(&arriving(at, kind, &request, elsewhere)).is_dropped_for(Reason::NoSuchTarget);
    }
    assert!(c.flows().is_empty());
}

/// Two nodes that each consider the backend to be on the other would forward a packet in a loop.
pub fn packets_from_a_tunnel_are_not_forwarded_again(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        c.forward(&request.syn())
            .leaves_by(INSIDE, &leaving(at, kind, &request.syn(), &request, &backend));
        let here = receive(c, at, kind, 1).remove(0);
        c.forward(&arriving(at, kind, &request.ack(), &here))
            .becomes(&request.ack().to(here.as_str()));
    }
}

pub fn tunnels_end_with_their_setting(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let request = at.to_web(port);
        c.forward(&arriving(at, kind, &request.syn(), &backend))
            .becomes(&request.syn().to(backend.as_str()));
        c.set(&at.web(1));
        // Connections continue; a new one is refused, although another node has selected the backend.
        c.forward(&arriving(at, kind, &request.ack(), &backend))
            .becomes(&request.ack().to(backend.as_str()));
        let other = at.to_web(port + 1).syn();
        c.forward(&arriving(at, kind, &other, &backend)).is_dropped_for(Reason::NoSuchTarget);
        c.peers(&[]);
        c.forward(&arriving(at, kind, &request.ack(), &backend)).passes_for(Reason::NotAPeer);
    }
}

pub fn tunnels_cut_off_at_every_length_are_never_half_opened(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let tunnel = arriving(at, kind, &at.to_web(port).syn(), &backend);
        // Without the last byte the TCP header is incomplete.
        for length in 14 + 40..tunnel.len() {
            let cut = tunnel.truncated(length);
            let answer = c.forward(&cut);
            assert!(answer.outcome.passed(), "{length}");
            assert_eq!(answer.outcome.bytes, cut[..], "{length}");
        }
    }
}

pub fn fragments_come_out_of_tunnels(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let [first, second] = pieces(&at.to_dns(port), port);
        c.forward(&arriving(at, kind, &second, &backend)).is_dropped_for(Reason::Fragment);
        for piece in [first, second] {
            c.forward(&arriving(at, kind, &piece, &backend)).becomes(&piece.to(backend.as_str()));
        }
    }
}

pub fn errors_come_out_of_tunnels(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let request = at.to_web(port);
        let error = error(at, &request);
        // About a packet that was not translated, or of an unknown flow.
        c.forward(&arriving(at, kind, &error, &backend)).is_dropped_for(Reason::UnknownQuote);
        c.forward(&arriving(at, kind, &request.syn(), &backend))
            .becomes(&request.syn().to(backend.as_str()));
        let expected = error.inner(|quoted| quoted.from(backend.as_str()));
        let expected = expected.to(address(&backend).as_str());
        c.forward(&arriving(at, kind, &error, &backend)).becomes(&expected);
    }
}

pub fn a_clients_packets_go_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        let packets = [
            request.syn(),
            request.ack(),
            request.psh_ack().payload(&[7; 1000]).tos(0x29),
            if at.is_v6() { request.ack().hop_by_hop() } else { request.ack().ip_options(&[1; 8]) },
        ];
        for packet in packets {
            let tos = packet.traffic_class();
            c.forward(&packet)
                .leaves_by(INSIDE, &leaving(at, kind, &packet, &request, &backend).tos(tos));
        }
    }
}

pub fn tc_makes_tunnels_too(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        for packet in [request.syn(), request.ack(), request.psh_ack().payload(&[7; 1000])] {
            let expected = leaving(at, kind, &packet, &request, &backend);
            c.stack(&packet).leaves_by(INSIDE, &expected);
        }
    }
}

pub fn packets_that_xdp_cannot_encapsulate_are_left_to_tc(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let syn = at.to_web(port).syn();
        c.exit(at.elsewhere, unknown_neighbour(INSIDE));
        c.forward(&syn).is_deferred_for(&[Reason::NoNeighbour]);
        // The stack writes the link-layer header.
        let expected = leaving(at, kind, &syn, &syn, &backend).macs(CLIENT_MAC, NODE_MAC);
        c.stack(&syn).leaves_by(INSIDE, &expected);
        c.exit(at.elsewhere, neighbour(INSIDE, ROUTER_MAC));
        c.device(INSIDE, |device| device.redirect = false);
        c.forward(&syn).is_deferred_for(&[]);
        c.stack(&syn).leaves_by(INSIDE, &leaving(at, kind, &syn, &syn, &backend));
    }
}

/// This node sees only the client's packets.
pub fn a_flow_through_a_tunnel_lives_by_its_clients_packets(c: &mut Conversation, at: &Ends) {
    let backend = send(c, at, Forwarding::Ipip);
    let request = at.to_web(40000);
    for (packet, state) in [
        (request.syn(), FlowState::OneWaySyn),
        (request.syn(), FlowState::OneWaySyn),
        (request.ack(), FlowState::OneWayProbation),
        (request.psh_ack(), FlowState::OneWayProbation),
        (request.fin_ack(), FlowState::OneWayClosed),
        (request.ack(), FlowState::OneWayClosed),
        (request.syn(), FlowState::OneWaySyn),
    ] {
        c.forward(&packet)
            .leaves_by(INSIDE, &leaving(at, Forwarding::Ipip, &packet, &request, &backend));
        assert_eq!(c.flows().only_state(), state);
    }
}

pub fn datagrams_go_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let question = at.to_dns(port);
        for _ in 0..2 {
            c.forward(&question)
                .leaves_by(INSIDE, &leaving(at, kind, &question, &question, &backend));
        }
    }
    assert_eq!(c.flows().states(), [FlowState::Datagram; 2]);
}

pub fn fragments_go_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let question = at.to_dns(port);
        let [first, second] = pieces(&question, port);
        c.forward(&second).passes_for(Reason::Fragment);
        for piece in [first, second] {
            c.forward(&piece).leaves_by(INSIDE, &leaving(at, kind, &piece, &question, &backend));
        }
    }
}

/// The backend's node gets no errors from the path to the client.
pub fn errors_go_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        let error = error(at, &request);
        c.forward(&error).passes_for(Reason::UnknownQuote);
        c.forward(&request.syn())
            .leaves_by(INSIDE, &leaving(at, kind, &request.syn(), &request, &backend));
        c.forward(&error).leaves_by(INSIDE, &leaving(at, kind, &error, &request, &backend));
        c.forward(&error.ttl(1)).is_dropped_for(Reason::HopLimit);
    }
}

/// The overhead of a tunnel in bytes.
fn overhead(at: &Ends, kind: Forwarding) -> usize {
    (if at.is_v6() { 40 } else { 20 }) + if kind == Forwarding::Gue { 8 } else { 0 }
}

pub fn packets_too_large_for_a_tunnel_are_rejected(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        let headers = if at.is_v6() { 60 } else { 40 };
        let most = 1500 - overhead(at, kind) - headers;
        let fits = request.psh_ack().payload(&vec![7; most]);
        c.forward(&fits).leaves_by(INSIDE, &leaving(at, kind, &fits, &request, &backend));
        let more = request.psh_ack().payload(&vec![7; most + 1]);
        let left = 1500 - overhead(at, kind) as u16;
        let error = packet_too_big(at.cluster_address(), &more, left);
        let error = error.quoting_only(8).id(0).macs(NODE_MAC, CLIENT_MAC);
        c.forward(&more).is_answered_by(&error, Reason::TooBig);
        c.stack(&more).is_answered_by(&error, Reason::TooBig);
    }
}

pub fn packets_that_are_too_large_and_allow_no_error_are_dropped(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let question = at.to_dns(port);
        let whole = question.payload(&[7; 2888]).id(port);
        let [first, second] = [whole.fragment(..1000), whole.fragment(1000..2480)];
        c.forward(&first).leaves_by(INSIDE, &leaving(at, kind, &first, &question, &backend));
        c.forward(&second).is_dropped_for(Reason::TooBig);
        let request = at.to_web(port);
        c.forward(&request.syn())
            .leaves_by(INSIDE, &leaving(at, kind, &request.syn(), &request, &backend));
        let quoted = request.reversed().psh_ack().payload(&[7; 1430]);
        c.forward(&packet_too_big(at.elsewhere, &quoted, 1280)).is_dropped_for(Reason::TooBig);
    }
}

pub fn packets_with_an_expired_hop_limit_are_rejected_before_a_tunnel(
    c: &mut Conversation,
    at: &Ends,
) {
    for (kind, port) in KINDS {
        send(c, at, kind);
        let last = at.to_web(port).syn().ttl(1);
        let error = time_exceeded(at.cluster_address(), &last);
        c.forward(&last).is_answered_by(
            &error.quoting_only(8).id(0).macs(NODE_MAC, CLIENT_MAC),
            Reason::HopLimit,
        );
    }
}

/// A pod that moves is another backend, but the address of a node may change.
pub fn a_tunnel_leads_to_where_its_backend_is_now(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        c.forward(&request.syn())
            .leaves_by(INSIDE, &leaving(at, kind, &request.syn(), &request, &backend));
        let moved = if at.is_v6() { "2001:db8::98" } else { "192.0.2.98" };
        c.set(&at.web(0).remote_backends(&[&backend]).on_node(moved).forwarding(kind));
        c.exit(moved, neighbour(INSIDE, ROUTER_MAC));
        let expected = leaving(at, kind, &request.ack(), &request, &backend);
        let expected = match kind {
            Forwarding::Gue => expected.to(at.end(moved, PORT).as_str()),
            _ => expected.to(moved),
        };
        c.forward(&request.ack()).leaves_by(INSIDE, &expected);
    }
}

pub fn a_connection_whose_backend_elsewhere_is_gone_is_reset(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        for packet in [request.syn(), request.ack()] {
            c.forward(&packet).leaves_by(INSIDE, &leaving(at, kind, &packet, &request, &backend));
        }
        c.set(&at.web(0));
        let more = request.ack().ack_number(5);
        let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
        c.forward(&more).is_answered_by(&reset, Reason::BackendGone);
    }
}

/// A NodePort's address is this node's own: no other node can reply from it.
pub fn node_ports_need_no_tunnel(c: &mut Conversation, at: &Ends) {
    let backend = send(c, at, Forwarding::Ipip);
    c.node_addresses(&[at.node]);
    let service = elsewhere(at, at.web(0).node_port(30080), &backend);
    c.set(&service.forwarding(Forwarding::Ipip));
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let syn = at.to_web(40000).to(at.end(at.node, 30080).as_str()).syn();
    let sent = syn.to(backend.as_str()).ttl(63).macs(mac(INSIDE), ROUTER_MAC);
    let snat = c.forward(&syn).leaves_with_snat_by(INSIDE, &sent);
    let snat: SocketAddr = snat.parse().expect("an end");
    assert_eq!(snat.ip().to_string(), own_address(at));
}

/// A packet of a pod is translated here, and routed to the backend.
pub fn pods_need_no_tunnel(c: &mut Conversation, at: &Ends) {
    let backend = send(c, at, Forwarding::Ipip);
    let syn = at.to_web(40000).syn();
    c.from_pod(&syn).becomes(&syn.to(backend.as_str()));
}

pub fn a_backend_on_this_node_needs_no_tunnel(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).forwarding(Forwarding::Ipip));
    establish(c, &at.to_web(40000), &at.backends(1)[0]);
    let outside = tcp(at.client(40001).as_str(), at.cluster(80).as_str()).syn();
    c.forward(&outside).becomes(&outside.to(at.backends(1)[0].as_str()));
}

/// A client outside the ranges is refused through another node, too.
pub fn source_ranges_hold_for_what_comes_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, port) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        let web = at.web(1).load_balancer(&at.load_balancer(80)).forwarding(kind);
        let request = at.to_web(port).to(at.load_balancer(80).as_str()).syn();
        c.set(&web.clone().source_ranges(&["192.0.2.0/24", "2001:db8:99::/48"]));
        let flows = c.flows().len();
        c.forward(&arriving(at, kind, &request, &backend)).is_dropped_for(Reason::SourceNotAllowed);
        assert_eq!(c.flows().len(), flows);
        c.set(&web.source_ranges(&["198.51.100.0/24", "2001:db8:51::/48"]));
        c.forward(&arriving(at, kind, &request, &backend)).becomes(&request.to(backend.as_str()));
    }
}

/// A packet in a tunnel does not end a flow with the same addresses: the outer header proves little.
pub fn a_tunnel_ends_no_established_flow(c: &mut Conversation, at: &Ends) {
    for index in [OUTSIDE, INSIDE] {
        c.device(index, |_| {});
    }
    c.node_addresses(&[at.node, &own_address(at)]);
    let far = at.backends(1).remove(0);
    c.exit(&address(&far), neighbour(INSIDE, ROUTER_MAC));
    c.exit(&address(&at.client(40000)), neighbour(OUTSIDE, CLIENT_MAC));
    c.set(&at.web(0).remote_backends(&[&far]));
    let request = at.to_web(40000).ttl(64);
    let there = |packet: &Packet| packet.macs(mac(INSIDE), ROUTER_MAC).ttl(63).to(far.as_str());
    let snat = c.forward(&request.syn()).leaves_with_snat_by(INSIDE, &there(&request.syn()));
    let answer = request.reversed().syn_ack();
    let back = answer.macs(mac(OUTSIDE), CLIENT_MAC).ttl(63);
    c.forward(&answer.from(far.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    let _ = c.forward(&request.ack()).leaves_with_snat_by(INSIDE, &there(&request.ack()));
    assert_eq!(c.flows().only_state(), FlowState::Established);

    let here = &at.backends(2)[1];
    c.peers(&[at.elsewhere]);
    c.set(&at.dns(1).forwarding(Forwarding::Ipip));
    let forged = arriving(at, Forwarding::Ipip, &request.psh_ack().payload(b"forged"), here);
    c.forward(&forged).is_dropped_for(Reason::NoSuchTarget);
    assert_eq!(c.flows().only_state(), FlowState::Established);
}
