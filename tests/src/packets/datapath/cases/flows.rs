//! States of flows, and which entries new flows replace.

use std::ops::Range;

use lb_common::layout::{FlowState, Reason};

use super::idle::exchange;
use super::{Ends, connect, establish};
use crate::packets::Packet;
use crate::packets::datapath::Conversation;

pub fn a_connection_lives_from_syn_to_fin(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    let reply = request.reversed();
    c.request_to(&backend, &request.syn());
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
    c.reply_from(&backend, &reply.syn_ack());
    assert_eq!(c.flows().only_state(), FlowState::SynReceived);
    c.request_to(&backend, &request.ack());
    assert_eq!(c.flows().only_state(), FlowState::Established);
    c.request_to(&backend, &request.fin_ack());
    assert_eq!(c.flows().only_state(), FlowState::FinFromClient);
    c.reply_from(&backend, &reply.ack());
    assert_eq!(c.flows().only_state(), FlowState::FinFromClient);
    c.reply_from(&backend, &reply.fin_ack());
    assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    // The last ACK is still translated.
    c.request_to(&backend, &request.ack());
}

pub fn a_reset_closes_a_connection(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let reset = request.reversed().rst();
    c.reply_from(&backend, &reset);
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

/// Until both sides have closed, a SYN goes to the backend of the connection.
pub fn a_syn_on_a_closed_connection_starts_a_new_one(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    c.request_to(&backend, &request.fin_ack());
    c.request_to(&backend, &request.syn());
    assert_eq!(c.flows().only_state(), FlowState::FinFromClient);
    let end = request.reversed().fin_ack();
    c.reply_from(&backend, &end);
    // A duplicate of an old SYN.
    let old = request.syn().seq(0u32.wrapping_sub(1 << 20));
    c.request_to(&backend, &old);
    assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    c.request_to(&backend, &request.syn());
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
}

pub fn a_connection_past_the_service_is_not_taken_for_a_closed_one(
    c: &mut Conversation,
    at: &Ends,
) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    let reply = request.reversed();
    establish(c, &request, &backend);
    c.request_to(&backend, &request.fin_ack());
    c.reply_from(&backend, &reply.fin_ack());
    // The client connects to the backend directly, from the same port.
    let direct = reply.from(backend.as_str());
    c.reverse(&direct.syn_ack()).passes_for(Reason::NoFlow);
    c.reverse(&direct.psh_ack().payload(b"answer")).passes_for(Reason::NoFlow);
    assert!(c.flows().is_empty());
}

pub fn a_closed_connection_does_not_take_the_replies_of_a_later_one(
    c: &mut Conversation,
    at: &Ends,
) {
    let backends = at.backends(2);
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    c.set(&at.service(81, "TCP", 0).backends(&[&backends[1]]));
    let to_web = at.to_web(40000);
    let to_other = to_web.to(at.cluster(81).as_str());
    for (request, backend) in [(&to_other, &backends[1]), (&to_web, &backends[0])] {
        establish(c, request, backend);
        let reply = request.reversed().rst();
        c.reply_from(backend, &reply);
    }
    // A direct connection frees the entry of the first flow, which lookups read last.
    let direct = to_other.reversed().from(backends[1].as_str()).syn_ack();
    c.reverse(&direct).passes_for(Reason::NoFlow);
    assert_eq!(c.flows().len(), 1);
    // The later flow gets it: from the same port to another frontend of the same backend.
    establish(c, &to_web.to(at.load_balancer(80).as_str()), &backends[0]);
}

pub fn a_packet_in_the_middle_of_an_unknown_connection_follows_the_table(
    c: &mut Conversation,
    at: &Ends,
) {
    c.set(&at.web(10));
    let backends = at.backends(10);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    // Another node, which has the same table, has forwarded the SYN.
    let syn = at.to_web(40000).syn();
    let there = c.forward(&syn).chosen(&backends, |backend| syn.to(backend)).to_owned();
    // Removing the backends removes the flow.
    c.remove(&at.web(10));
    c.set(&at.web(10));
    let _ = c.forward(&at.to_web(40000).ack());
    assert!(c.flows().is_empty());
    let data = at.to_web(40000).psh_ack().payload(b"more");
    c.request_to(&there, &data);
}

/// If the flow of a connection was lost, only client and backend know the connection. If the backend
/// continues it, the new flow is on probation.
pub fn the_first_packet_of_the_backend_decides_about_a_picked_up_connection(
    c: &mut Conversation,
    at: &Ends,
) {
    use FlowState::{PickedUp, Probation, Reset};
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    type Kind = fn(&Packet) -> Packet;
    let first_replies: [(Kind, FlowState); 5] = [
        (Packet::ack, Probation),
        (Packet::psh_ack, Probation),
        (Packet::fin_ack, Probation),
        // There was no connection, or it is being opened again.
        (Packet::rst, Reset),
        (Packet::syn_ack, PickedUp),
    ];
    for (port, (make_reply, state)) in (40000..).zip(first_replies) {
        let data = at.to_web(port).psh_ack().payload(b"more");
        c.request_to(&backend, &data);
        assert_eq!(c.flows().state_of(port), PickedUp, "as long as the backend has not replied");
        let reply = make_reply(&at.to_web(port).reversed());
        c.reply_from(&backend, &reply);
        assert_eq!(c.flows().state_of(port), state);
    }
    c.wait(100);
    let data = at.to_web(40000).psh_ack().payload(b"more");
    c.request_to(&backend, &data);
    assert_eq!(c.flows().state_of(40000), FlowState::Established);
}

pub fn a_reply_without_a_flow_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let reply = at.to_web(40000).reversed().ack();
    c.reverse(&reply.from(at.backends(1)[0].as_str())).passes_for(Reason::NoFlow);
    assert!(c.flows().is_empty());
}

pub fn a_flow_moves_when_its_backend_goes(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.dns(1));
    let question = at.to_dns(40000);
    c.forward(&question).becomes(&question.to(backends[0].as_str()));
    c.set(&at.dns(0).backends(&[&backends[1]]));
    c.forward(&question).becomes(&question.to(backends[1].as_str()));
    assert_eq!(c.flows().len(), 1, "the old flow is gone");
}

pub fn a_flow_moves_when_its_backend_leaves_its_service(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.dns(1));
    c.set(&at.service(54, "UDP", 1));
    let question = at.to_dns(40000);
    c.forward(&question).becomes(&question.to(backends[0].as_str()));
    let to_other = at.to_dns(40001).to(at.cluster(54).as_str());
    c.forward(&to_other).becomes(&to_other.to(backends[0].as_str()));
    // The other Service still uses it, so its flows stay.
    c.set(&at.dns(0).backends(&[&backends[1]]));
    c.set(&at.service(54, "UDP", 2));
    c.forward(&question).becomes(&question.to(backends[1].as_str()));
    c.forward(&to_other).becomes(&to_other.to(backends[0].as_str()));
}

pub fn an_index_given_to_another_backend_takes_no_flow_along(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(3);
    c.set(&at.dns(0).backends(&[&backends[0]]));
    let question = at.to_dns(40000);
    c.forward(&question).becomes(&question.to(backends[0].as_str()));
    // The index of the first backend is free after the second change, and used by the third.
    c.set(&at.dns(0).backends(&[&backends[1]]));
    c.set(&at.dns(0).backends(&[&backends[2]]));
    c.forward(&question).becomes(&question.to(backends[2].as_str()));
}

pub fn a_flow_survives_what_happens_to_other_backends(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    for count in [2, 30, 5, 1] {
        c.set(&at.web(count));
        c.request_to(&backend, &request.ack());
    }
}

pub fn established_flows_are_not_evicted_by_a_flood(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    // Room for 32 flows; some buckets are full earlier than others.
    let established: Vec<Packet> = (0..16).map(|n| at.to_web(40000 + n)).collect();
    for request in &established {
        establish(c, request, &backend);
    }
    for port in 0..200 {
        let spoofed = at.to_web(50000 + port).syn();
        let _ = c.forward(&spoofed);
    }
    for request in &established {
        let reply = request.reversed().ack();
        c.reply_from(&backend, &reply);
        c.request_to(&backend, &request.ack());
    }
    let states = c.flows().states();
    assert_eq!(states.iter().filter(|&&state| state == FlowState::Established).count(), 16);
}

pub fn nascent_flows_make_room(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    for port in 0..500 {
        let request = at.to_web(40000 + port);
        c.request_to(&backend, &request.syn());
    }
    assert_eq!(c.flows().len(), 32, "the table is full, and goes on taking new flows");

    // A new flow gets no entry only if established flows have all of them, and this is counted.
    for port in 0..2000 {
        let request = at.to_web(10000 + port);
        let opened = c.forward(&request.syn());
        if opened.was_counted_for(Reason::Untracked) {
            opened.becomes_for(&request.syn().to(backend.as_str()), Reason::Untracked);
            continue;
        }
        let reply = request.reversed().syn_ack();
        c.reply_from(&backend, &reply);
        c.request_to(&backend, &request.ack());
    }
    // It is forwarded nevertheless, in both directions.
    let late = at.to_web(9999);
    c.forward(&late.syn()).becomes_for(&late.syn().to(backend.as_str()), Reason::Untracked);
    let reply = late.reversed().syn_ack();
    c.reply_from(&backend, &reply);
    c.forward(&late.ack()).becomes_for(&late.ack().to(backend.as_str()), Reason::Untracked);
}

pub fn one_port_of_a_client_reaches_two_services(c: &mut Conversation, at: &Ends) {
    let (web, backends) = (at.web(1), at.backends(2));
    let other = at.service(81, "TCP", 0).backends(&[&backends[1]]);
    c.set(&web);
    c.set(&other);
    let to_web = at.to_web(40000);
    let to_other = at.to_web(40000).to(at.cluster(81).as_str());
    establish(c, &to_web, &backends[0]);
    establish(c, &to_other, &backends[1]);
    assert_eq!(c.flows().len(), 2);
    for (request, backend) in [(&to_web, &backends[0]), (&to_other, &backends[1])] {
        let reply = request.reversed().ack();
        c.reply_from(backend, &reply);
    }
}

/// Both ends ignore such packets, or reply with a challenge ACK, so the flow must continue.
pub fn packets_outside_the_window_do_not_end_a_connection(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(2));
    let request = at.to_web(40000);
    let backends = at.backends(2);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let backend =
        c.forward(&request.syn()).chosen(&backends, |backend| request.syn().to(backend)).to_owned();
    establish(c, &request, &backend);
    let far = request.seq(0x8000_0000).ack_number(0x4000_0000);
    for stray in [far.psh_ack().payload(b"late"), far.rst(), far.rst_ack(), far.syn()] {
        c.request_to(&backend, &stray);
        let reply = request.reversed().psh_ack().payload(b"answer");
        c.reply_from(&backend, &reply);
        c.request_to(&backend, &request.ack());
    }
    for stray in [far.reversed().ack(), far.reversed().rst(), far.reversed().rst_ack()] {
        c.reply_from(&backend, &stray);
        let more = request.psh_ack().payload(b"more");
        c.request_to(&backend, &more);
    }
}

/// A resolver that uses very many Services from one socket. In tables of this size it depends on the
/// seed whether all flows get entries.
pub fn one_port_of_a_client_has_any_number_of_flows(c: &mut Conversation, at: &Ends) {
    one_port_has_flows(c, at, 24);
}

/// More flows than a client's share of its buckets, and fewer than any two buckets have entries.
pub const MORE_THAN_ITS_SHARE: u16 = 12;

/// The port has a flow to each of so many Services.
pub fn one_port_has_flows(c: &mut Conversation, at: &Ends, services: u16) {
    let backends = at.backends(services);
    let question = |port: u16| at.to_dns(40000).to(at.cluster(1000 + port).as_str());
    for (port, backend) in (0..services).zip(&backends) {
        c.set(&at.service(1000 + port, "UDP", 0).backends(&[backend]));
    }
    for _ in 0..2 {
        for (port, backend) in (0..services).zip(&backends) {
            c.request_to(backend, &question(port));
        }
        assert_eq!(c.flows().len(), usize::from(services), "each has its own");
        for (port, backend) in (0..services).zip(&backends) {
            let reply = question(port).reversed().payload(b"answer");
            c.reply_from(backend, &reply);
        }
    }
}

/// Connects a client from each of these ports, and returns its requests.
pub fn clients_connect(c: &mut Conversation, at: &Ends, ports: Range<u16>) -> Vec<Packet> {
    c.set(&at.web(1));
    let requests: Vec<_> = ports.map(|port| at.to_web(port)).collect();
    for request in &requests {
        establish(c, request, &at.backends(1)[0]);
    }
    requests
}

/// Whichever of its two buckets a flow began in, packets in both directions find it.
pub fn flows_are_found_wherever_new_ones_begin(c: &mut Conversation, at: &Ends) {
    let mut requests = Vec::new();
    for (first, rest) in [(40000, false), (40010, true)] {
        c.begin_in_rest(rest);
        requests.extend(clients_connect(c, at, first..first + 4));
    }
    let backend = at.backends(1)[0].clone();
    for rest in [false, true] {
        c.begin_in_rest(rest);
        for request in &requests {
            let reply = request.reversed().ack();
            c.reply_from(&backend, &reply);
            c.request_to(&backend, &request.ack());
        }
        assert_eq!(c.flows().len(), requests.len(), "none began again");
    }
}

/// The client sends to the backend directly, from the port of its flow: the reply does not belong to the
/// flow.
pub fn a_datagram_past_the_service_ends_its_flow(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    let reply = question.reversed().payload(b"answer");
    c.request_to(&backend, &question);
    c.reply_from(&backend, &reply);
    let direct = question.to(backend.as_str());
    c.forward(&direct).passes();
    assert!(c.flows().is_empty());
    c.reverse(&reply.from(backend.as_str())).passes_for(Reason::NoFlow);
}

/// The packet may be forged.
pub fn a_datagram_past_the_service_leaves_a_stream(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    exchange(c, &question, &backend);
    assert_eq!(c.flows().only_state(), FlowState::DatagramStream);
    c.forward(&question.to(backend.as_str())).passes();
    c.reply_from(&backend, &question.reversed().payload(b"answer"));
    c.request_to(&backend, &question);
    assert_eq!(c.flows().only_state(), FlowState::DatagramStream);
}

/// Neither flags nor sequence numbers prove that the client received the SYN-ACK.
pub fn only_an_ack_of_the_syn_ack_establishes_a_connection(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    c.request_to(&backend, &request.syn());
    let reply = request.reversed().syn_ack();
    c.reply_from(&backend, &reply);
    let far = request.ack_number(0x4000_0000);
    for packet in [request.flags(""), request.flags("P"), far.ack(), far.fin_ack(), far.psh_ack()] {
        c.request_to(&backend, &packet);
        assert_eq!(c.flows().only_state(), FlowState::SynReceived);
    }
}

/// A client that has sent its FIN still reads: packets of the backend are still translated.
pub fn a_half_closed_connection_keeps_its_identity(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    c.request_to(&backend, &request.fin_ack());
    let other = request.to(at.load_balancer(80).as_str());
    let snat = c.forward(&other.syn()).with_snat(&other.syn().to(backend.as_str()));
    assert_ne!(snat, at.client(40000));
    let data = request.reversed().psh_ack().payload(b"more");
    c.reply_from(&backend, &data);
}

/// A blind reset changes nothing, and the connection stays with its backend when that drains.
pub fn a_reset_out_of_the_window_closes_nothing(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let reply = request.reversed().ack();
    c.reply_from(&backend, &reply);
    let blind = request.seq(0x2000_0000).rst();
    c.request_to(&backend, &blind);
    assert_eq!(c.flows().only_state(), FlowState::Established);
    c.request_to(&backend, &request.rst());
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}
