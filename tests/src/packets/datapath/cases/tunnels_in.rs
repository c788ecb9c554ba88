//! Packets that arrive through tunnels of other nodes.

use lb_common::layout::{FlowState, Forwarding, Reason};

use super::Ends;
use super::tunnels::{
    KINDS, PORT, ROUTER_MAC, address, arriving, error, leaving, own_address, pieces, receive, send,
};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, mac, neighbour};
use crate::packets::{CLIENT_MAC, Packet};

pub fn a_packet_from_a_tunnel_reaches_the_backend_that_it_names(c: &mut Conversation, at: &Ends) {
    for (kind, first) in KINDS {
        let backends = receive(c, at, kind, 3);
        for (backend, port) in backends.iter().zip(first..) {
            let request = at.to_web(port);
            c.forward(&arriving(at, kind, &request.syn(), backend))
                .becomes(&request.syn().to(backend.as_str()));
            let reply = request.reversed().syn_ack();
            c.reply_from(backend, &reply);
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
        let reply = at.to_web(port).reversed().syn_ack();
        c.reply_from(&backend, &reply);
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

pub fn congestion_in_a_tunnel_is_passed_on(c: &mut Conversation, at: &Ends) {
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
        // To a port without a Service: outside of the tunnel the stack would route it back out.
        c.forward(&arriving(at, kind, &request.to(at.cluster(81).as_str()), &backend))
            .is_dropped_for(Reason::NoSuchPort);
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
    c.request_to(&backend, &question);
    c.request_to(&backend, &question.from(at.end(at.elsewhere, 40000).as_str()));
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
            let processed = c.forward(&cut);
            assert!(processed.outcome.passed(), "{length}");
            assert_eq!(processed.outcome.bytes, cut[..], "{length}");
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
    let reply = request.reversed().syn_ack();
    let back = reply.macs(mac(OUTSIDE), CLIENT_MAC).ttl(63);
    c.forward(&reply.from(far.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    let _ = c.forward(&request.ack()).leaves_with_snat_by(INSIDE, &there(&request.ack()));
    assert_eq!(c.flows().only_state(), FlowState::Established);

    let here = &at.backends(2)[1];
    c.peers(&[at.elsewhere]);
    c.set(&at.dns(1).forwarding(Forwarding::Ipip));
    let forged = arriving(at, Forwarding::Ipip, &request.psh_ack().payload(b"forged"), here);
    c.forward(&forged).is_dropped_for(Reason::NoSuchTarget);
    assert_eq!(c.flows().only_state(), FlowState::Established);
}
