//! Flows that are not in the buckets of their client: these are full, or the client has used up its share.

use std::collections::BTreeSet;

use lb_common::layout::Reason;

use super::Ends;
use super::flows::{MORE_THAN_ITS_SHARE, one_port_has_flows};
use super::tunnels::{KINDS, address, arriving, pieces, receive};
use crate::packets::datapath::Conversation;
use crate::packets::{Packet, packet_too_big, tcp};

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
            fill(c, &at.cluster(80), at, &backend);
            return (request, backend);
        }
        established.push(request);
    }
    panic!("no flow is in further buckets");
}

/// Opens connections until the table is full.
fn fill(c: &mut Conversation, frontend: &str, at: &Ends, backend: &str) {
    for port in 50_000..52_000 {
        if c.flows().len() == 32 {
            return;
        }
        let request = tcp(at.client(port).as_str(), frontend);
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

const TIMEOUT: u32 = 600;

/// Established connections to another Service have all entries. A client opens connections to five
/// backends, which get no entry. Returns a packet of each, and the backend of all.
fn open_untracked(c: &mut Conversation, at: &Ends) -> (Vec<Packet>, String) {
    let backend = at.end(&format!("{}9", at.clients), 8080);
    c.set(&at.service(81, "TCP", 0).backends(&[&backend]));
    fill(c, &at.cluster(81), at, &backend);
    c.set(&at.web(5).affinity(TIMEOUT.into()));
    let client = at.end(&format!("{}1", at.clients), 0);
    let client = client.trim_end_matches('0');
    let requests: Vec<Packet> =
        (40_000..40_012).map(|port| at.to_web(0).from(&*format!("{client}{port}"))).collect();
    let chosen: BTreeSet<String> =
        requests.iter().map(|request| led_to(c, at, &request.syn(), true)).collect();
    assert_eq!(chosen.len(), 1, "{chosen:?}");
    (requests, chosen.into_iter().next().expect("one"))
}

/// The backend that gets a packet of a connection without an entry, or with one.
fn led_to(c: &mut Conversation, at: &Ends, packet: &Packet, is_untracked: bool) -> String {
    let backends = at.backends(5);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let processed = c.forward(packet);
    assert_eq!(processed.was_counted_for(Reason::Untracked), is_untracked);
    processed.chosen(&backends, |backend| packet.to(backend)).to_owned()
}

/// Makes room for a flow, which one of the requests begins. Returns its backend.
fn open_tracked(c: &mut Conversation, at: &Ends, requests: &[Packet]) -> String {
    for port in 50_000..52_000 {
        let _ = c.forward(&tcp(at.client(port).as_str(), at.cluster(81).as_str()).rst());
    }
    c.wait(11);
    led_to(c, at, &requests[0].syn(), false)
}

pub fn a_client_with_affinity_has_one_backend_without_entries_too(c: &mut Conversation, at: &Ends) {
    let (requests, chosen) = open_untracked(c, at);
    for request in &requests {
        assert_eq!(led_to(c, at, &request.ack(), true), chosen);
    }
    assert_eq!(open_tracked(c, at, &requests), chosen);
    for request in &requests {
        assert_eq!(led_to(c, at, &request.ack(), false), chosen);
    }
}

/// Its packets renew the affinity, as no entry says that they belong to a connection; those that come
/// later follow it still.
pub fn a_connection_without_an_entry_outlasts_its_affinity(c: &mut Conversation, at: &Ends) {
    let (requests, chosen) = open_untracked(c, at);
    for waited in [TIMEOUT - 60, TIMEOUT - 60, TIMEOUT + 60] {
        c.wait(waited);
        for request in &requests {
            assert_eq!(led_to(c, at, &request.ack(), true), chosen);
        }
    }
    // Connections that begin then are led anywhere.
    c.wait(TIMEOUT + 60);
    let anew: BTreeSet<String> = (0..8)
        .map(|number| {
            let client = at.end(&format!("{}{number}", at.clients), 40_000);
            led_to(c, at, &at.to_web(0).from(client.as_str()).syn(), true)
        })
        .collect();
    assert!(anew.len() > 1, "{anew:?}");
}
