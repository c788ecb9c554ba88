//! The bytes: which are rewritten, and that no others are.

use super::Ends;
use crate::packets::Packet;
use crate::packets::datapath::Conversation;

/// Sends a packet to the only backend, and its reply back.
fn there_and_back(conversation: &mut Conversation, request: &Packet, backend: &str) {
    conversation.forward(request).becomes(&request.to(backend));
    let reply = request.reversed();
    conversation.reverse(&reply.from(backend)).becomes(&reply);
}

pub fn a_request_goes_to_a_backend_and_its_reply_comes_back(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000);
    let backend = &at.backends(1)[0];
    there_and_back(c, &request.syn(), backend);
    there_and_back(c, &request.psh_ack().payload(b"GET / HTTP/1.1\r\n\r\n"), backend);
    there_and_back(c, &request.ack().payload(b"odd"), backend);
}

pub fn a_datagram_goes_to_a_backend_and_its_reply_comes_back(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    there_and_back(c, &at.to_dns(40000), &at.backends(1)[0]);
}

pub fn tags_of_networks_stay(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = &at.backends(1)[0];
    there_and_back(c, &at.to_web(40001).syn().vlan(100), backend);
    there_and_back(c, &at.to_web(40002).syn().qinq(200, 100), backend);
}

pub fn headers_between_stay(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let backend = &at.backends(1)[0];
    if at.is_v6() {
        there_and_back(c, &at.to_web(40001).syn().hop_by_hop(), backend);
        there_and_back(c, &at.to_web(40002).syn().hop_by_hop().destination_options(), backend);
    } else {
        // The option Router Alert.
        there_and_back(c, &at.to_web(40001).syn().ip_options(&[148, 4, 0, 0]), backend);
        // The maximum length of options.
        there_and_back(c, &at.to_web(40002).syn().ip_options(&[1; 40]), backend);
    }
    there_and_back(c, &at.to_web(40003).syn().mss(1460), backend);
}

pub fn a_datagram_without_a_checksum_keeps_none(c: &mut Conversation, at: &Ends) {
    // Such datagrams are invalid over IPv6, but a middlebox must not repair them.
    c.set(&at.dns(1));
    there_and_back(c, &at.to_dns(40000).no_checksum(), &at.backends(1)[0]);
}

pub fn a_wrong_checksum_stays_wrong(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).syn();
    let field = request.transport_offset() + 16;
    let wrong = request.with(move |bytes| bytes[field] ^= 0x40);
    let processed = c.forward(&wrong);
    assert!(processed.outcome.passed());
    let right = request.to(at.backends(1)[0].as_str());
    let (got, right) = (&processed.outcome.bytes[field..field + 2], &right[field..field + 2]);
    assert_ne!(got, right, "a fault on the way here must be noticed at the end");
}

pub fn a_packet_with_padding_keeps_it(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).syn().padded(120);
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}
