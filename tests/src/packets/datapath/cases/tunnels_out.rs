//! Packets that this node sends through tunnels to backends on other nodes.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lb_common::layout::{FlowState, Forwarding, Reason};

use super::tunnels::{
    KINDS, PORT, ROUTER_MAC, address, elsewhere, error, leaving, own_address, pieces, send,
};
use super::{Ends, establish};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{INSIDE, mac, neighbour, unknown_neighbour};
use crate::packets::{CLIENT_MAC, NODE_MAC, Packet, packet_too_big, tcp, time_exceeded};

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
        c.forward(&request.syn())
            .leaves_by(INSIDE, &leaving(at, kind, &request.syn(), &request, &backend));
        c.forward(&error).leaves_by(INSIDE, &leaving(at, kind, &error, &request, &backend));
        c.forward(&error.ttl(1)).is_dropped_for(Reason::HopLimit);
    }
}

/// With equal-cost paths a router sends an error to any node, also to one that knows nothing of the
/// connection: the error goes where the connection's requests would.
pub fn errors_about_flows_of_other_nodes_go_through_a_tunnel(c: &mut Conversation, at: &Ends) {
    for (kind, first) in KINDS {
        send(c, at, kind);
        let backends = at.backends(5);
        for service in [at.web(0), at.dns(0)] {
            let ends: Vec<&str> = backends.iter().map(String::as_str).collect();
            c.set(&service.remote_backends(&ends).on_node(at.elsewhere).forwarding(kind));
        }
        let mut chosen = BTreeSet::new();
        for port in first..first + 6 {
            for request in [at.to_web(port).syn(), at.to_dns(port)] {
                let reply = request.reversed().payload(&[7; 1000]);
                let error = packet_too_big(at.elsewhere, &reply, 1280);
                let arrived = c.forward(&error);
                let sent = |backend: &str| leaving(at, kind, &error, &request, backend);
                let ends: Vec<&str> = backends.iter().map(String::as_str).collect();
                let backend = arrived.chosen(&ends, sent);
                arrived.leaves_by(INSIDE, &sent(backend));
                c.stack(&error).leaves_by(INSIDE, &sent(backend));
                c.forward(&error.ttl(1)).is_dropped_for(Reason::HopLimit);
                c.forward(&request)
                    .leaves_by(INSIDE, &leaving(at, kind, &request, &request, backend));
                chosen.insert(backend.to_owned());
            }
        }
        assert!(chosen.len() > 1, "{chosen:?}");
    }
}

/// An error that goes through a tunnel although its connection is not known here.
pub fn error_of_another_node(c: &mut Conversation, at: &Ends) -> Packet {
    send(c, at, Forwarding::Gue);
    error(at, &at.to_web(40000))
}

/// Only a request from outside would go through a tunnel, and only to a backend elsewhere.
pub fn other_errors_about_unknown_flows_pass(c: &mut Conversation, at: &Ends) {
    let backend = send(c, at, Forwarding::Ipip);
    let request = at.to_web(40000);
    let error = error(at, &request);
    c.from_pod(&error).passes_for(Reason::UnknownQuote);
    let other_port = super::tunnels::error(at, &request.to(at.cluster(81).as_str()));
    c.forward(&other_port).passes_for(Reason::UnknownQuote);
    for service in [
        elsewhere(at, at.web(0), &backend).forwarding(Forwarding::Masquerade),
        at.web(1).forwarding(Forwarding::Ipip),
        at.web(0).forwarding(Forwarding::Ipip),
    ] {
        c.set(&service);
        c.forward(&error).passes_for(Reason::UnknownQuote);
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
