//! Which flow an answer is of, and what it makes of it.

use std::net::SocketAddr;

use lb_common::layout::{FlowState, Reason};

use super::Ends;
use super::establish;
use crate::datapath::Conversation;
use crate::packet::tcp;

pub fn an_answer_to_another_client_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    establish(c, &at.to_web(40000), &backend);
    let answer = at.to_web(40001).reversed().ack().from(backend.as_str());
    c.reverse(&answer).passes_for(Reason::NoFlow);
    c.reverse(&answer.to(at.end(at.elsewhere, 40000).as_str())).passes_for(Reason::NoFlow);
}

pub fn an_answer_from_another_port_passes(c: &mut Conversation, at: &Ends) {
    let backend: SocketAddr = at.backends(1)[0].parse().expect("a backend's end");
    let other = SocketAddr::new(backend.ip(), 9090).to_string();
    c.set(&at.web(1));
    // It serves there, too, but not this client.
    c.set(&at.service(81, "TCP", 0).backends(&[&other]));
    establish(c, &at.to_web(40000), &backend.to_string());
    let answer = at.to_web(40000).reversed().ack();
    c.reverse(&answer.from(other.as_str())).passes_for(Reason::NoFlow);
    c.reverse(&answer.from(SocketAddr::new(backend.ip(), 22))).passes();
}

pub fn a_datagram_flow_is_established_by_an_answered_question(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    let answer = question.reversed().payload(b"answer");
    c.forward(&question).becomes(&question.to(backend.as_str()));
    c.forward(&question).becomes(&question.to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Nascent);
    c.reverse(&answer.from(backend.as_str())).becomes(&answer);
    assert_eq!(c.flows().only_state(), FlowState::Answered);
    c.forward(&question).becomes(&question.to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

pub fn a_syn_sent_again_after_the_answer_proves_nothing(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    let answer = request.reversed().syn_ack();
    c.forward(&request.syn()).becomes(&request.syn().to(backend.as_str()));
    c.reverse(&answer.from(backend.as_str())).becomes(&answer);
    c.forward(&request.syn()).becomes(&request.syn().to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Answered);
    c.reverse(&answer.from(backend.as_str())).becomes(&answer);
    assert_eq!(c.flows().only_state(), FlowState::Answered);
}

pub fn a_server_may_close_first(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    let answer = request.reversed();
    c.reverse(&answer.fin_ack().from(backend.as_str())).becomes(&answer.fin_ack());
    assert_eq!(c.flows().only_state(), FlowState::ClosedReverse);
    // The client still has something to say.
    let more = request.psh_ack().payload(b"more");
    c.forward(&more).becomes(&more.to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::ClosedReverse);
    c.forward(&request.fin_ack()).becomes(&request.fin_ack().to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Closed);
    c.reverse(&answer.ack().from(backend.as_str())).becomes(&answer.ack());
}

pub fn a_client_may_reset_and_dial_again(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    c.forward(&request.rst()).becomes(&request.rst().to(backend.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Closed);
    establish(c, &request, &backend);
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

/// What happens today, and should not: the answers of two connections can't be told apart by
/// their ends, and all go to the one that is found first.
pub fn two_frontends_of_one_backend_share_a_clients_answers(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(443)));
    let backend = at.backends(1)[0].clone();
    let one = at.to_web(40000);
    let other = tcp(at.client(40000).as_str(), at.load_balancer(443).as_str());
    c.forward(&one.syn()).becomes(&one.syn().to(backend.as_str()));
    c.forward(&other.syn()).becomes(&other.syn().to(backend.as_str()));
    assert_eq!(c.flows().len(), 2);

    let sent = other.reversed().syn_ack().from(backend.as_str());
    let first = c.reverse(&sent).outcome.bytes;
    let second = c.reverse(&sent).outcome.bytes;
    assert_eq!(first, second, "always the same connection's");
    let theirs = [one.reversed().syn_ack(), other.reversed().syn_ack()];
    assert!(theirs.iter().any(|answer| first == answer[..]));
}
