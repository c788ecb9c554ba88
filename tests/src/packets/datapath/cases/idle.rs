//! How long idle flows keep their entries and addresses.

use lb_common::header::Sctp;
use lb_common::layout::{FlowState, Reason};

use super::{Ends, establish};
use crate::packets::Packet;
use crate::packets::datapath::{Conversation, FLOWS};

/// Longer than a test takes, because the kernel's clock continues.
const MARGIN: u32 = 10;

/// Fills every entry with an established connection; returns these and a SYN without an entry.
fn fill(c: &mut Conversation, at: &Ends) -> (Vec<Packet>, Packet) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let mut established = Vec::new();
    for port in 10_000.. {
        let request = at.to_web(port);
        let opened = c.forward(&request.syn());
        if established.len() == FLOWS as usize {
            opened.becomes_for(&request.syn().to(backend.as_str()), Reason::Untracked);
            return (established, request.syn());
        }
        if !opened.was_counted_for(Reason::Untracked) {
            let reply = request.reversed().syn_ack();
            c.reply_from(&backend, &reply);
            c.request_to(&backend, &request.ack());
            established.push(request);
        }
    }
    unreachable!("one of so many ports finds the last place");
}

/// After this number of seconds, and not before, there is an entry for the SYN.
fn makes_room_after(c: &mut Conversation, at: &Ends, seconds: u32, late: &Packet) {
    c.wait(seconds - MARGIN);
    c.forward(late).becomes_for(&late.to(at.backends(1)[0].as_str()), Reason::Untracked);
    c.wait(2 * MARGIN);
    c.forward(late).becomes(&late.to(at.backends(1)[0].as_str()));
}

pub fn an_established_connection_keeps_its_place_for_a_day(c: &mut Conversation, at: &Ends) {
    let (_, late) = fill(c, at);
    makes_room_after(c, at, 86_400, &late);
}

pub fn a_connection_closed_by_its_client_keeps_its_place_for_an_hour(
    c: &mut Conversation,
    at: &Ends,
) {
    let backend = at.backends(1)[0].clone();
    let (established, late) = fill(c, at);
    for request in &established {
        c.request_to(&backend, &request.fin_ack());
    }
    makes_room_after(c, at, 3_600, &late);
}

pub fn a_connection_closed_by_its_server_keeps_its_place_for_an_hour(
    c: &mut Conversation,
    at: &Ends,
) {
    let backend = at.backends(1)[0].clone();
    let (established, late) = fill(c, at);
    for request in &established {
        let reply = request.reversed().fin_ack();
        c.reply_from(&backend, &reply);
    }
    makes_room_after(c, at, 3_600, &late);
}

/// A flow keeps the client's address and port for this number of seconds after its last packet. A
/// second flow from the same port to another frontend of the same backend shows whether they are
/// in use: then it gets an SNAT port.
fn keeps_its_end_for(
    c: &mut Conversation,
    at: &Ends,
    seconds: u32,
    opening: &Packet,
    go_on: impl Fn(&mut Conversation, &Packet, &str),
) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    c.set(&at.dns(1).load_balancer(&at.load_balancer(80)));
    c.set(&at.diameter(1).load_balancer(&at.load_balancer(80)));
    let backend = at.backends(1)[0].clone();
    for (port, waited, kept) in [(40001, seconds - MARGIN, true), (40002, seconds + MARGIN, false)]
    {
        let first = opening.from(at.client(port).as_str());
        c.request_to(&backend, &first);
        go_on(c, &first, &backend);
        c.wait(waited);
        let second = first.to(at.load_balancer(80).as_str());
        let snat = c.forward(&second).with_snat(&second.to(backend.as_str()));
        assert_eq!(snat != at.client(port), kept, "after {waited} seconds");
    }
}

pub fn a_connection_without_a_reply_keeps_its_port_for_a_minute(c: &mut Conversation, at: &Ends) {
    keeps_its_end_for(c, at, 60, &at.to_web(0).syn(), |_, _, _| {});
}

pub fn an_unfinished_handshake_keeps_its_end_for_a_minute(c: &mut Conversation, at: &Ends) {
    keeps_its_end_for(c, at, 60, &at.to_web(0).syn(), |c, request, backend| {
        let reply = request.reversed().syn_ack();
        c.reply_from(backend, &reply);
    });
}

/// The backend may wait for last packets of a closed connection for a minute, and could mistake those
/// of a new one for them.
pub fn a_closed_connection_keeps_its_end_for_a_minute(c: &mut Conversation, at: &Ends) {
    keeps_its_end_for(c, at, 60, &at.to_web(0).syn(), |c, request, backend| {
        establish(c, request, backend);
        let end = request.fin_ack();
        c.forward(&end).becomes(&end.to(backend));
        c.reverse(&end.reversed().from(backend)).becomes(&end.reversed());
    });
}

pub fn a_reset_connection_gives_its_end_back_at_once(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    let end = request.reversed().rst();
    c.reply_from(&backend, &end);
    establish(c, &request.to(at.load_balancer(80).as_str()), &backend);
}

pub fn a_request_without_a_reply_keeps_its_port_for_half_a_minute(c: &mut Conversation, at: &Ends) {
    keeps_its_end_for(c, at, 30, &at.to_dns(0), |_, _, _| {});
}

pub fn a_request_with_a_reply_keeps_its_port_for_half_a_minute(c: &mut Conversation, at: &Ends) {
    keeps_its_end_for(c, at, 30, &at.to_dns(0), |c, question, backend| {
        let reply = question.reversed().payload(b"answer");
        c.reply_from(backend, &reply);
    });
}

/// Datagrams in both directions, twice, some seconds apart: a stream.
pub fn exchange(c: &mut Conversation, question: &Packet, backend: &str) {
    let reply = question.reversed().payload(b"answer");
    for _ in 0..2 {
        c.request_to(backend, question);
        c.reply_from(backend, &reply);
        c.wait(5);
    }
}

pub fn an_exchange_of_datagrams_is_over_after_three_minutes(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    for (waited, state) in
        [(175 - MARGIN, FlowState::DatagramStream), (180 + MARGIN, FlowState::Datagram)]
    {
        let question = at.to_dns(40000);
        exchange(c, &question, &backend);
        c.wait(waited);
        c.request_to(&backend, &question);
        assert_eq!(c.flows().only_state(), state, "after {waited} seconds");
    }
}

pub fn packets_of_either_side_keep_a_flow(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    exchange(c, &question, &backend);
    for number in 0..6 {
        c.wait(175 - MARGIN);
        if number < 3 {
            c.request_to(&backend, &question);
        } else {
            let reply = question.reversed().payload(b"more");
            c.reply_from(&backend, &reply);
        }
        assert_eq!(c.flows().only_state(), FlowState::DatagramStream, "after {number}");
    }
    c.wait(175 - MARGIN);
    c.request_to(&backend, &question);
    assert_eq!(c.flows().only_state(), FlowState::DatagramStream);
}

/// An idle client may get another backend. An active one stays with its backend when the table changes.
pub fn datagrams_follow_the_table_when_they_have_been_idle(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    let questions: Vec<Packet> = (40000..40008).map(|port| at.to_dns(port)).collect();
    c.set(&at.dns(1));
    for question in &questions {
        exchange(c, question, &backends[0]);
    }
    c.set(&at.dns(2));
    c.wait(60);
    for question in &questions {
        c.forward(question).becomes(&question.to(backends[0].as_str()));
    }
    c.wait(180 + MARGIN);
    let ends = [backends[0].as_str(), backends[1].as_str()];
    let moved = questions.iter().filter(|question| {
        let chosen = c.forward(question).chosen(&ends, |backend| question.to(backend));
        chosen == backends[1]
    });
    assert!(moved.count() > 0, "the table leads no client to the second backend");
    assert_eq!(c.flows().len(), questions.len());
}

/// A connection stays with its backend until its timeout, even if the table changes.
pub fn a_connection_that_was_silent_for_hours_goes_on(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    let requests: Vec<Packet> = (40000..40008).map(|port| at.to_web(port)).collect();
    c.set(&at.web(1));
    for request in &requests {
        establish(c, request, &backends[0]);
    }
    c.set(&at.web(2));
    c.wait(86_400 - MARGIN);
    for request in &requests {
        let more = request.psh_ack().payload(b"more");
        c.forward(&more).becomes(&more.to(backends[0].as_str()));
        c.reverse(&more.reversed().from(backends[0].as_str())).becomes(&more.reversed());
    }
}

/// After its timeout neither requests nor replies use a flow.
pub fn a_reply_does_not_use_an_expired_flow(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    c.request_to(&backend, &question);
    c.wait(30 + MARGIN);
    let reply = question.reversed().payload(b"late").from(backend.as_str());
    c.reverse(&reply).passes_for(Reason::NoFlow);
    assert!(c.flows().is_empty());
}

pub fn an_association_keeps_its_end_for_a_day(c: &mut Conversation, at: &Ends) {
    const COOKIE_ECHO: u8 = 10;
    keeps_its_end_for(c, at, 86_400, &at.to_diameter(0), |c, request, backend| {
        let reply = request.reversed().chunk(Sctp::INIT_ACK);
        c.reply_from(backend, &reply);
        let echo = request.chunk(COOKIE_ECHO);
        c.forward(&echo).becomes(&echo.to(backend));
    });
}

pub fn later_fragments_are_waited_for_half_a_minute(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let whole = at.to_dns(40000).id(7).payload(&[7; 3000]);
    let first = whole.fragment(..1480);
    let [second, third] = [whole.fragment(1480..2960), whole.fragment(2960..)];
    c.request_to(&backend, &first);
    c.wait(30 - MARGIN);
    c.request_to(&backend, &second);
    c.wait(2 * MARGIN);
    c.forward(&third).passes_for(Reason::Fragment);
}
