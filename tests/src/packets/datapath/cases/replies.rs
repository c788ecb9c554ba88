//! Replies: which flow they belong to, and how they change its state.

use std::net::SocketAddr;

use lb_common::layout::{FlowState, Reason};

use super::{Ends, TwoFrontends, connect, establish};
use crate::packets::datapath::Conversation;
use crate::packets::{tcp, udp};

pub fn a_reply_to_another_client_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    establish(c, &at.to_web(40000), &backend);
    let reply = at.to_web(40001).reversed().ack().from(backend.as_str());
    c.reverse(&reply).passes_for(Reason::NoFlow);
    c.reverse(&reply.to(at.end(at.elsewhere, 40000).as_str())).passes_for(Reason::NoFlow);
}

/// A backend may also be the client of its own client, with the same ports: then its requests look like
/// replies, and get the source address of one. Each side still receives what the other sends.
pub fn a_request_that_could_be_a_reply_has_a_replys_source(c: &mut Conversation, at: &Ends) {
    let [one, other] = [0, 1].map(|number| at.backends(2)[number].clone());
    let (service_of_one, service_of_other) = (at.cluster(53), at.cluster(54));
    c.set(&at.dns(0).backends(&[&one]));
    c.set(&at.service(54, "UDP", 0).backends(&[&other]));
    let earlier = udp(other.as_str(), service_of_one.as_str()).payload(b"earlier");
    c.from_pod(&earlier).becomes(&earlier.to(one.as_str()));

    let request = udp(one.as_str(), service_of_other.as_str()).payload(b"request");
    let there = request.to(other.as_str());
    c.from_pod(&request).becomes(&there);
    c.reverse(&there).becomes(&there.from(service_of_one.as_str()));
    let reply = udp(other.as_str(), service_of_one.as_str()).payload(b"reply");
    let back = reply.to(one.as_str());
    c.from_pod(&reply).becomes(&back);
    c.reverse(&back).becomes(&back.from(service_of_other.as_str()));
}

pub fn a_reply_from_another_port_passes(c: &mut Conversation, at: &Ends) {
    let backend: SocketAddr = at.backends(1)[0].parse().expect("a backend's end");
    let other = SocketAddr::new(backend.ip(), 9090).to_string();
    c.set(&at.web(1));
    // This backend also serves the frontend, but not this client.
    c.set(&at.service(81, "TCP", 0).backends(&[&other]));
    establish(c, &at.to_web(40000), &backend.to_string());
    let reply = at.to_web(40000).reversed().ack();
    c.reverse(&reply.from(other.as_str())).passes_for(Reason::NoFlow);
    c.reverse(&reply.from(SocketAddr::new(backend.ip(), 22))).passes();
}

pub fn datagrams_become_a_stream_by_packets_both_ways_over_time(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    let reply = question.reversed().payload(b"answer");
    c.request_to(&backend, &question);
    c.request_to(&backend, &question);
    assert_eq!(c.flows().only_state(), FlowState::Datagram);
    for _ in 0..2 {
        c.reply_from(&backend, &reply);
        c.request_to(&backend, &question);
        assert_eq!(c.flows().only_state(), FlowState::DatagramReplied);
    }
    c.wait(5);
    c.request_to(&backend, &question);
    assert_eq!(c.flows().only_state(), FlowState::DatagramContinued);
    c.reply_from(&backend, &reply);
    assert_eq!(c.flows().only_state(), FlowState::DatagramStream);
}

pub fn a_syn_sent_again_after_the_reply_proves_nothing(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    let reply = request.reversed().syn_ack();
    c.request_to(&backend, &request.syn());
    c.reply_from(&backend, &reply);
    c.request_to(&backend, &request.syn());
    assert_eq!(c.flows().only_state(), FlowState::SynReceived);
    c.reply_from(&backend, &reply);
    assert_eq!(c.flows().only_state(), FlowState::SynReceived);
}

pub fn a_server_may_close_first(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let reply = request.reversed();
    c.reply_from(&backend, &reply.fin_ack());
    assert_eq!(c.flows().only_state(), FlowState::FinFromBackend);
    // The client still sends.
    let more = request.psh_ack().payload(b"more");
    c.request_to(&backend, &more);
    assert_eq!(c.flows().only_state(), FlowState::FinFromBackend);
    c.request_to(&backend, &request.fin_ack());
    assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    c.reply_from(&backend, &reply.ack());
}

pub fn a_client_may_reset_and_dial_again(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    c.request_to(&backend, &request.rst());
    assert_eq!(c.flows().only_state(), FlowState::Reset);
    establish(c, &request, &backend);
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

/// The second connection's packets reach the backend from another port.
pub fn two_frontends_of_one_backend_are_distinguished(c: &mut Conversation, at: &Ends) {
    let TwoFrontends { backend, one, other, snat } = TwoFrontends::open(c, at);
    assert_ne!(snat, at.client(40000));
    assert_eq!(c.flows().len(), 2);

    let reply = one.reversed().syn_ack();
    c.reply_from(&backend, &reply);
    let reply = other.reversed().syn_ack();
    c.reverse(&reply.from(backend.as_str()).to(snat.as_str())).becomes(&reply);
    c.forward(&other.ack()).becomes(&other.ack().to(backend.as_str()).from(snat.as_str()));
    c.request_to(&backend, &one.ack());
    assert_eq!(c.flows().states(), [FlowState::Established; 2]);
}

/// The SNAT port of one flow may be the client port of another.
pub fn a_snat_port_is_no_other_clients(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(443)));
    let backend = at.backends(1)[0].clone();
    let to = |frontend: String, port| tcp(at.client(port).as_str(), frontend.as_str()).syn();
    c.request_to(&backend, &to(at.cluster(80), 40000));
    let second = to(at.load_balancer(443), 40000);
    let snat = c.forward(&second).with_snat(&second.to(backend.as_str()));
    // The client uses the port later.
    let port: u16 = snat.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
    let third = to(at.cluster(80), port);
    let other = c.forward(&third).with_snat(&third.to(backend.as_str()));
    assert_ne!(snat, other);
    assert_eq!(c.flows().len(), 3);
}

pub fn datagrams_of_two_frontends_are_distinguished(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1).load_balancer(&at.load_balancer(53)));
    let backend = at.backends(1)[0].clone();
    let one = at.to_dns(40000);
    let other = one.to(at.load_balancer(53).as_str());
    c.request_to(&backend, &one);
    let snat = c.forward(&other).with_snat(&other.to(backend.as_str()));
    assert_ne!(snat, at.client(40000));
    let reply = one.reversed().payload(b"one");
    c.reply_from(&backend, &reply);
    let reply = other.reversed().payload(b"other");
    c.reverse(&reply.from(backend.as_str()).to(snat.as_str())).becomes(&reply);
}
