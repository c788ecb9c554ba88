//! Flows that are not in the buckets of their client: these are full, or the client has used up its share.

use lb_common::layout::Reason;

use super::Ends;
use super::flows::{MORE_THAN_ITS_SHARE, one_port_has_flows};
use super::tunnels::{KINDS, address, arriving, pieces, receive};
use crate::packets::datapath::Conversation;
use crate::packets::{Packet, packet_too_big};

/// Established connections have all entries of the buckets that the client selects, and of those that
/// client and frontend select first. Whatever belongs to the flow finds it in the others.
pub fn a_flow_of_full_buckets_is_found(c: &mut Conversation, at: &Ends) {
    let (request, backend) = begin_in_further_buckets(c, at);
    let reply = request.reversed().psh_ack();
    let (question, answer) = (request.psh_ack(), reply.payload(&[7; 999]));
    for packet in [question.clone(), request.ack()].iter().chain(&pieces(&question, 1)) {
        c.request_to(&backend, packet);
    }
    for packet in [answer.clone()].iter().chain(&pieces(&reply, 2)) {
        c.reply_from(&backend, packet);
    }
    let error = packet_too_big(at.elsewhere, &answer, 1280);
    let expected = error.inner(|quoted| quoted.from(backend.as_str()));
    c.forward(&error).becomes(&expected.to(address(&backend).as_str()));
    let there = question.to(backend.as_str()).payload(&[7; 999]);
    let error = packet_too_big(at.elsewhere, &there, 1280);
    let expected = error.inner(|quoted| quoted.to(at.cluster(80).as_str()));
    c.reverse(&error).becomes(&expected.from(address(&at.cluster(80)).as_str()));
    assert_eq!(c.flows().len(), 32, "none began again");
}

/// Opens connections until one is in the last buckets that it may be in. Returns a packet of its client,
/// and the backend.
fn begin_in_further_buckets(c: &mut Conversation, at: &Ends) -> (Packet, String) {
    c.set(&at.web(1));
    let backend = at.backends(1)[0].clone();
    let mut established: Vec<Packet> = Vec::new();
    // One of about seven that find an entry in a table with one free entry.
    for port in 40_000..42_000 {
        let request = at.to_web(port);
        let opened = c.forward(&request.syn());
        if opened.was_counted_for(Reason::Untracked) {
            let ending = established.remove(usize::from(port) % established.len());
            c.reply_from(&backend, &ending.reversed().rst());
            continue;
        }
        opened.becomes(&request.syn().to(backend.as_str()));
        c.reply_from(&backend, &request.reversed().syn_ack());
        c.request_to(&backend, &request.ack());
        if c.is_in_further_buckets(port) {
            fill(c, at, &backend);
            return (request, backend);
        }
        established.push(request);
    }
    panic!("no flow is in further buckets");
}

/// Opens connections until the table is full.
fn fill(c: &mut Conversation, at: &Ends, backend: &str) {
    for port in 50_000..52_000 {
        if c.flows().len() == 32 {
            return;
        }
        let request = at.to_web(port);
        if !c.forward(&request.syn()).was_counted_for(Reason::Untracked) {
            c.reply_from(backend, &request.reversed().syn_ack());
            c.request_to(backend, &request.ack());
        }
    }
    panic!("the table does not get full");
}

/// The client has more flows from one port than its share.
pub fn fragments_and_errors_of_a_crowded_client_come_out_of_tunnels(
    c: &mut Conversation,
    at: &Ends,
) {
    one_port_has_flows(c, at, MORE_THAN_ITS_SHARE);
    for (id, (kind, _)) in (1..).zip(KINDS) {
        // The last backend has no other flow of the client, which would need SNAT.
        let mut backends = receive(c, at, kind, MORE_THAN_ITS_SHARE + 1);
        let backend = backends.remove(MORE_THAN_ITS_SHARE.into());
        let question = at.to_dns(40000);
        for piece in pieces(&question, id) {
            c.forward(&arriving(at, kind, &piece, &backend)).becomes(&piece.to(backend.as_str()));
        }
        let answer = question.reversed().payload(&[7; 999]);
        c.reply_from(&backend, &answer);
        let error = packet_too_big(at.elsewhere, &answer, 1280);
        let expected = error.inner(|quoted| quoted.from(backend.as_str()));
        let expected = expected.to(address(&backend).as_str());
        c.forward(&arriving(at, kind, &error, &backend)).becomes(&expected);
    }
}
