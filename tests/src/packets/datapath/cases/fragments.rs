//! Fragments: those of translated packets are all translated, those of others pass.

use lb_common::layout::{FlowState, Reason};

use super::{Ends, connect};
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{Packet, packet_too_big, port_unreachable, time_exceeded};

/// A large request in three fragments.
fn pieces(packet: &Packet) -> [Packet; 3] {
    let whole = packet.payload(&[7; 3000]);
    [whole.fragment(..1480), whole.fragment(1480..2960), whole.fragment(2960..)]
}

pub fn all_of_a_question_and_of_its_reply_are_translated(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000).id(0x1234);
    for piece in pieces(&question) {
        c.request_to(&backend, &piece);
    }
    let reply = question.reversed().id(0x4321);
    for piece in pieces(&reply) {
        c.reply_from(&backend, &piece);
    }
    assert_eq!(c.flows().only_state(), FlowState::DatagramReplied);
    // The next request belongs to the same flow.
    for piece in pieces(&question.id(0x1235)) {
        c.request_to(&backend, &piece);
    }
    assert_eq!(c.flows().only_state(), FlowState::DatagramReplied);
}

pub fn segments_in_pieces_are_translated(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    for piece in pieces(&request.psh_ack()) {
        c.request_to(&backend, &piece);
    }
    let reply = request.reversed().psh_ack();
    for piece in pieces(&reply) {
        c.reply_from(&backend, &piece);
    }
}

pub fn a_pod_sends_fragments_too(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    for piece in pieces(&at.to_dns(40000)) {
        c.from_pod(&piece).becomes(&piece.to(backend.as_str()));
    }
}

pub fn a_fragment_without_its_first_one_is_counted(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let [first, second, third] = pieces(&at.to_dns(40000).id(7));
    let translated = |piece: &Packet| piece.to(backend.as_str());
    c.forward(&second).passes_for(Reason::Fragment);
    c.forward(&first).becomes(&translated(&first));
    c.forward(&third).becomes(&translated(&third));
    c.forward(&second).becomes(&translated(&second));
    // Fragments of another packet, another client, another protocol.
    let [_, other, _] = pieces(&at.to_dns(40000).id(8));
    c.forward(&other).passes_for(Reason::Fragment);
    let [_, other, _] = pieces(&at.to_dns(40000).from(at.elsewhere).id(7));
    c.forward(&other).passes_for(Reason::Fragment);
    let [_, other, _] = pieces(&at.to_web(40000).id(7));
    c.forward(&other).passes_for(Reason::Fragment);
}

pub fn others_fragments_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    for piece in pieces(&at.to_dns(40000).to(at.elsewhere)) {
        c.forward(&piece).passes();
        c.reverse(&piece).passes();
    }
    // A port of a backend that does not belong to a Service.
    let other = at.to_dns(40000).reversed().from(backend.as_str().replace("8080", "9090").as_str());
    for piece in pieces(&other) {
        c.reverse(&piece).passes();
    }
    // Without a flow: the client has connected to the backend directly.
    let [first, second, third] = pieces(&at.to_dns(40000).reversed().from(backend.as_str()));
    c.reverse(&first).passes_for(Reason::NoFlow);
    c.reverse(&second).passes();
    c.reverse(&third).passes();
}

pub fn fragments_that_are_too_short_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let whole = at.to_web(40000).syn();
    let (first, second) = (whole.fragment(..16), whole.fragment(16..));
    c.forward(&first).passes_for(Reason::Malformed);
    c.forward(&second).passes_for(Reason::Fragment);
    assert!(c.flows().is_empty());
}

pub fn tags_options_and_headers_of_fragments_stay(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000).qinq(7, 8);
    let question = if at.is_v6() {
        question.hop_by_hop().destination_options()
    } else {
        question.ip_options(&[0x94, 4, 0, 0])
    };
    for piece in pieces(&question) {
        c.request_to(&backend, &piece);
    }
}

/// A changed port changes the checksum of SCTP by the length of the whole packet.
pub fn fragments_of_sctp_to_another_port_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.diameter(1));
    let backend = at.backends(1)[0].clone();
    let request = at.to_diameter(40000);
    c.request_to(&backend, &request);
    let reply = request.reversed().from(backend.as_str());
    for (piece, back) in pieces(&request).iter().zip(pieces(&reply)) {
        c.forward(piece).passes_for(Reason::Fragment);
        c.reverse(&back).passes_for(Reason::Fragment);
    }
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
    // An atomic fragment of IPv6 is a whole packet.
    c.request_to(&backend, &request.payload(b"question").fragment(..));
}

pub fn fragments_of_sctp_to_the_same_port_are_translated(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].replace("8080", "3868");
    c.set(&at.diameter(0).backends(&[&backend]));
    let request = at.to_diameter(40000);
    // Of no association.
    for piece in pieces(&request) {
        c.stack(&piece).passes_for(Reason::Fragment);
    }
    assert!(c.flows().is_empty());
    c.request_to(&backend, &request);
    let (request, reply) = (request.id(7), request.reversed().id(8));
    for (there, back) in pieces(&request).iter().zip(pieces(&reply)) {
        c.request_to(&backend, there);
        c.reply_from(&backend, &back);
    }
}

pub fn a_client_without_a_backend_gets_one_error(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(0));
    let [first, second, third] = pieces(&at.to_dns(40000));
    let processed = c.forward(&first);
    assert!(processed.is_counted_for(Reason::NoBackend));
    assert_eq!(processed.outcome.fate, crate::packets::datapath::Fate::Transmitted);
    // For XDP, the first fragment could still be on its way to tc.
    for piece in [second, third] {
        c.forward(&piece).is_deferred_for(&[]);
        c.stack(&piece).passes_for(Reason::Fragment);
    }
}

/// A host that gives up reassembly quotes the first fragment.
pub fn errors_about_fragments_are_translated(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let [first, second, _] = pieces(&at.to_dns(40000).id(7));
    let there = first.to(backend.as_str());
    c.forward(&first).becomes(&there);
    for error in [
        time_exceeded(at.elsewhere, &there),
        port_unreachable(at.elsewhere, &there),
        packet_too_big(at.elsewhere, &there, 1400),
    ] {
        let error = error.quoting_only(500);
        c.reverse(&error).becomes(&error.inner(|_| first.clone()).from(at.cluster_address()));
    }
    let error = time_exceeded(at.elsewhere, &second.to(backend.as_str()));
    c.reverse(&error.quoting_only(500)).passes();
}

pub fn fragments_cut_off_at_every_length_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let first = at.to_dns(40000).payload(&[7; 3000]).fragment(..1480);
    let network_ends = 14 + if at.is_v6() { 40 } else { 20 };
    for length in network_ends..first.transport_offset() + 8 {
        let cut = first.truncated(length);
        for hook in [Hook::Forward, Hook::Reverse] {
            let processed = c.run(hook, &cut);
            assert!(processed.outcome.passed(), "{length}");
            assert_eq!(processed.outcome.bytes, cut[..], "{length}");
        }
    }
    assert!(c.flows().is_empty());
}

/// An atomic fragment of IPv6.
pub fn a_fragment_that_is_the_whole_is_one(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000).fragment(..);
    c.request_to(&backend, &question);
    let reply = at.to_dns(40000).reversed().payload(b"answer").fragment(..);
    c.reply_from(&backend, &reply);
}
