//! SCTP: flows, and its own checksum.

use lb_common::header::Sctp;
use lb_common::layout::{FlowState, Reason};

use super::Ends;
use crate::packets::datapath::Conversation;
use crate::packets::{CLIENT_MAC, NODE_MAC, Packet, port_unreachable, sctp};

const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;

/// The range of the checksum.
fn checksum(packet: &Packet) -> std::ops::Range<usize> {
    let start = packet.transport_offset() + 8;
    start..start + 4
}

/// The ICMP error for a port without a backend.
fn refusal(at: &Ends, packet: &Packet) -> Packet {
    let refusal = port_unreachable(at.cluster_address(), packet);
    refusal.quoting_only(8).macs(NODE_MAC, CLIENT_MAC).ttl(64).id(0)
}

fn associate(c: &mut Conversation, request: &Packet, backend: &str) {
    let reply = request.reversed();
    let forward = |c: &mut Conversation, kind| c.request_to(backend, &request.chunk(kind));
    let reverse = |c: &mut Conversation, kind| c.reply_from(backend, &reply.chunk(kind));
    forward(c, Sctp::INIT);
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
    reverse(c, Sctp::INIT_ACK);
    forward(c, Sctp::INIT);
    assert_eq!(c.flows().only_state(), FlowState::SynReceived);
    forward(c, COOKIE_ECHO);
    assert_eq!(c.flows().only_state(), FlowState::Established);
    reverse(c, COOKIE_ACK);
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

pub fn an_association_picked_up_midway_is_on_probation(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let data = at.to_diameter(40000).payload(b"question");
    c.request_to(&backend, &data);
    assert_eq!(c.flows().only_state(), FlowState::PickedUp);
    let reply = data.reversed().payload(b"a reply");
    c.reply_from(&backend, &reply);
    assert_eq!(c.flows().only_state(), FlowState::Probation);
}

pub fn an_association_lives_from_init_to_shutdown_complete(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_diameter(40000);
    let reply = request.reversed();
    associate(c, &request, &backend);
    let data = request.payload(b"question");
    c.request_to(&backend, &data);
    let data = reply.payload(b"a reply");
    c.reply_from(&backend, &data);
    assert_eq!(c.flows().only_state(), FlowState::Established);

    let shutdown = request.chunk(Sctp::SHUTDOWN);
    c.request_to(&backend, &shutdown);
    assert_eq!(c.flows().only_state(), FlowState::FinFromClient);
    // The server still sends.
    c.reply_from(&backend, &data);
    assert_eq!(c.flows().only_state(), FlowState::FinFromClient);
    let shutdown_ack = reply.chunk(Sctp::SHUTDOWN_ACK);
    c.reply_from(&backend, &shutdown_ack);
    let complete = request.chunk(Sctp::SHUTDOWN_COMPLETE);
    c.request_to(&backend, &complete);
    assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    // A new association is served.
    c.request_to(&backend, &request);
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
}

pub fn an_abort_closes_an_association(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_diameter(40000);
    associate(c, &request, &backend);
    let abort = request.reversed().chunk(Sctp::ABORT);
    c.reply_from(&backend, &abort);
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

pub fn a_wrong_checksum_stays_wrong(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let request = at.to_diameter(40000);
    let field = checksum(&request);
    let first = field.start;
    let processed = c.forward(&request.with(move |bytes| bytes[first] ^= 0x40));
    assert!(processed.outcome.passed());
    let right = request.to(at.backends(1)[0].as_str());
    let mut got = processed.outcome.bytes;
    // The error in the checksum stays the same.
    got[first] ^= 0x40;
    assert_eq!(got, right[..]);
}

pub fn a_checksum_that_a_device_completes_stays_empty(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_diameter(40000);
    let field = checksum(&request);
    let request = request.with(move |bytes| bytes[field.clone()].fill(0));
    c.request_to(&backend, &request);
    let reply = request.reversed();
    c.reply_from(&backend, &reply);
}

pub fn padding_is_not_summed_up(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let request = at.to_diameter(40000).chunk(COOKIE_ECHO).padded(120);
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

pub fn messages_of_every_length_are_translated(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_diameter(40000);
    for length in (1..=300).chain([1400, 3000]) {
        let data = request.payload(&vec![length as u8; length]);
        c.request_to(&backend, &data);
    }
    let tagged = request.qinq(200, 100).payload(b"tagged");
    c.request_to(&backend, &tagged);
    let more = if at.is_v6() {
        request.hop_by_hop().destination_options()
    } else {
        request.ip_options(&[1; 40])
    };
    c.request_to(&backend, &more);
}

/// The second association's packets reach the backend from another port.
pub fn associations_of_two_frontends_are_distinguished(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1).load_balancer(&at.load_balancer(3868)));
    let backend = at.backends(1)[0].clone();
    let one = at.to_diameter(40000);
    let other = sctp(at.client(40000).as_str(), at.load_balancer(3868).as_str());
    c.request_to(&backend, &one);
    let snat = c.forward(&other).with_snat(&other.to(backend.as_str()));
    assert_ne!(snat, at.client(40000));
    let reply = one.reversed().chunk(Sctp::INIT_ACK);
    c.reply_from(&backend, &reply);
    let reply = other.reversed().chunk(Sctp::INIT_ACK);
    c.reverse(&reply.from(backend.as_str()).to(snat.as_str())).becomes(&reply);
    let echo = other.chunk(COOKIE_ECHO);
    c.forward(&echo).becomes(&echo.to(backend.as_str()).from(snat.as_str()));
}

pub fn an_init_without_a_backend_is_rejected(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(0));
    let request = at.to_diameter(40000);
    let refusal = refusal(at, &request);
    c.forward(&request).is_answered_by(&refusal, Reason::NoBackend);
    assert!(c.flows().is_empty());
}

/// The association neither hangs nor moves to a backend that does not know it.
pub fn an_association_without_its_backend_is_rejected(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.diameter(1));
    let request = at.to_diameter(40000);
    associate(c, &request, &backends[0]);
    c.set(&at.diameter(0).backends(&[&backends[1]]));
    let data = request.payload(b"question");
    c.forward(&data).is_deferred_for(&[]);
    c.stack(&data).is_answered_by(&refusal(at, &data), Reason::BackendGone);
    assert!(c.flows().is_empty());
    c.forward(&request).becomes(&request.to(backends[1].as_str()));
}

pub fn packets_cut_off_at_every_length_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let request = at.to_diameter(40000).chunk(COOKIE_ECHO);
    for length in request.transport_offset()..request.len() {
        c.forward(&request.truncated(length)).passes_for(Reason::Malformed);
    }
    assert!(c.flows().is_empty());
}
