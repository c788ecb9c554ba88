//! ICMP errors about translated packets: they quote the packet as its sender sent it.

use lb_common::layout::{FlowState, Reason};

use super::{Ends, TwoFrontends, connect, establish};
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{
    Packet, icmp_echo, packet_too_big, port_unreachable, sctp, time_exceeded, udp,
};

/// The error that the backend gets, for an error from the client's side.
fn to_backend(error: &Packet, backend: &str) -> Packet {
    error.inner(|quoted| quoted.from(backend)).to(address(backend).as_str())
}

/// The error that the client gets, for an error from the backend's side.
fn from_frontend(error: &Packet, frontend: &str) -> Packet {
    error.inner(|quoted| quoted.to(frontend)).from(address(frontend).as_str())
}

fn address(end: &str) -> String {
    let end: std::net::SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}

pub fn a_backend_learns_what_happens_to_its_replies(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let reply = request.reversed().psh_ack().payload(&[7; 1400]);
    for error in [
        packet_too_big(at.elsewhere, &reply, 1400),
        time_exceeded(at.elsewhere, &reply),
        port_unreachable(address(&at.client(0)).as_str(), &reply),
    ] {
        for quoted in [8, 18, 20, 500] {
            let error = error.quoting_only(quoted);
            c.forward(&error).becomes(&to_backend(&error, &backend));
        }
    }
}

pub fn a_client_learns_what_happens_to_its_requests(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let there = request.to(backend.as_str()).psh_ack().payload(&[7; 1400]);
    for error in [
        packet_too_big(at.elsewhere, &there, 1400),
        time_exceeded(at.elsewhere, &there),
        port_unreachable(address(&backend).as_str(), &there),
    ] {
        for quoted in [8, 18, 20, 500] {
            let error = error.quoting_only(quoted);
            c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(80)));
        }
    }
}

pub fn a_pod_hears_what_becomes_of_its_packets(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    c.from_pod(&question).becomes(&question.to(backend.as_str()));
    let reply = question.reversed().payload(b"answer");
    let error = port_unreachable(address(&at.client(0)).as_str(), &reply);
    c.from_pod(&error).becomes(&to_backend(&error, &backend));
    let error = port_unreachable(address(&backend).as_str(), &question.to(backend.as_str()));
    c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(53)));
}

pub fn quotes_of_datagrams_and_of_sctp_are_restored(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    c.set(&at.dns(1));
    c.set(&at.diameter(1));
    let question = at.to_dns(40000);
    let without_checksum = at.to_dns(40001).no_checksum();
    for question in if at.is_v6() { vec![question] } else { vec![question, without_checksum] } {
        c.request_to(&backend, &question);
        let error = port_unreachable(address(&backend).as_str(), &question.to(backend.as_str()));
        c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(53)));
        let error = time_exceeded(at.elsewhere, &question.reversed().payload(b"answer"));
        c.forward(&error).becomes(&to_backend(&error, &backend));
    }
    let init = at.to_diameter(40000);
    c.request_to(&backend, &init);
    let error = time_exceeded(at.elsewhere, &init.to(backend.as_str())).quoting_only(8);
    c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(3868)));
}

/// The backend sees the client with its SNAT port.
pub fn errors_about_flows_with_snat_are_distinguished(c: &mut Conversation, at: &Ends) {
    let TwoFrontends { backend, other, snat, .. } = TwoFrontends::open(c, at);

    let there = other.ack().from(snat.as_str()).to(backend.as_str());
    let error = packet_too_big(at.elsewhere, &there, 1400);
    let here = from_frontend(&error, &at.load_balancer(443));
    c.reverse(&error).becomes(&here.inner(|quoted| quoted.from(at.client(40000).as_str())));

    let error = packet_too_big(at.elsewhere, &other.reversed().ack(), 1400);
    let there = to_backend(&error, &backend).inner(|quoted| quoted.to(snat.as_str()));
    c.forward(&error).becomes(&there);
}

pub fn an_error_changes_nothing_of_its_flow(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    c.request_to(&backend, &request.syn());
    let error = time_exceeded(at.elsewhere, &request.reversed().syn_ack());
    c.forward(&error).becomes(&to_backend(&error, &backend));
    let there = request.to(backend.as_str()).rst();
    let error = time_exceeded(at.elsewhere, &there);
    c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(80)));
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
}

pub fn tags_options_and_headers_of_errors_stay(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let dressed = |packet: &Packet| {
        if at.is_v6() {
            packet.hop_by_hop().destination_options()
        } else {
            packet.ip_options(&[0x94, 4, 0, 0])
        }
    };
    let reply = dressed(&request.reversed().ack());
    let error = dressed(&packet_too_big(at.elsewhere, &reply, 1280)).qinq(7, 8).tos(0xc0);
    c.forward(&error).becomes(&to_backend(&error, &backend));
    let there = dressed(&request.ack().to(backend.as_str()));
    let error = dressed(&packet_too_big(at.elsewhere, &there, 1280)).vlan(7);
    c.reverse(&error).becomes(&from_frontend(&error, &at.cluster(80)));
}

pub fn errors_about_others_packets_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    establish(c, &at.to_web(40000), &backend);
    let client = address(&at.client(0));
    for packet in [
        port_unreachable(client.as_str(), &at.to_web(40001).reversed().ack()),
        port_unreachable(client.as_str(), &udp(at.cluster(80).as_str(), at.client(40000).as_str())),
        port_unreachable(client.as_str(), &icmp_echo(at.cluster_address(), client.as_str())),
        port_unreachable(client.as_str(), &sctp(at.cluster(80).as_str(), at.client(1).as_str())),
    ] {
        c.forward(&packet).passes_for(Reason::UnknownQuote);
    }
    c.forward(&icmp_echo(client.as_str(), at.cluster_address()))
        .passes_for(Reason::UnknownProtocol);
    c.forward(&port_unreachable(client.as_str(), &at.to_web(40000).from(at.elsewhere))).passes();
    let there = at.to_web(40001).to(backend.as_str()).ack();
    c.reverse(&port_unreachable(at.elsewhere, &there)).passes();
    c.reverse(&icmp_echo(address(&backend).as_str(), client.as_str())).passes();
}

pub fn errors_cut_off_at_every_length_are_never_half_translated(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    c.request_to(&backend, &question);
    let forward = time_exceeded(at.elsewhere, &question.reversed());
    let reverse = time_exceeded(at.elsewhere, &question.to(backend.as_str()));
    let network_ends = 14 + if at.is_v6() { 40 } else { 20 };
    // Up to the ports in the quote.
    let needed = network_ends + 8 + (network_ends - 14) + 4;
    for (hook, error) in [(Hook::Forward, forward), (Hook::Reverse, reverse)] {
        for length in network_ends..needed {
            let cut = error.truncated(length);
            let processed = c.run(hook, &cut);
            assert!(processed.outcome.passed(), "{length}");
            assert_eq!(processed.outcome.bytes, cut[..], "{length}");
        }
    }
}
