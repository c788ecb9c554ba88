//! Many, wrong or truncated headers.

use lb_common::layout::Reason;

use super::{Ends, connect};
use crate::packets::Packet;
use crate::packets::datapath::Conversation;

/// Sends a packet to the only backend, and its reply back.
fn there_and_back(c: &mut Conversation, request: &Packet, backend: &str) {
    c.forward(request).becomes(&request.to(backend));
    let reply = request.reversed();
    c.reverse(&reply.from(backend)).becomes(&reply);
}

pub fn tags_options_and_headers_together_stay(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).syn().mss(1460).qinq(200, 100).padded(180);
    let request = if at.is_v6() {
        // As many as the data plane skips.
        (0..3).fold(request.hop_by_hop(), |request, _| request.destination_options())
    } else {
        request.ip_options(&[1; 40])
    };
    there_and_back(c, &request, &at.backends(1)[0]);
}

pub fn a_jumbo_frame_is_translated(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    // On ingress XDP sees the rest in buffer fragments. On egress BPF_PROG_TEST_RUN accepts no more than
    // a page.
    let backend = &at.backends(1)[0];
    let request = at.to_web(40000).psh_ack().payload(&[0xa5; 8900]);
    c.request_to(backend, &request);
    there_and_back(c, &request.payload(&[0xa5; 3000]), backend);
}

pub fn a_checksum_that_comes_to_zero_is_written_as_ones(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000).payload(&[0, 0]);
    let field = question.transport_offset() + 6;
    // Subtracting the checksum without it gives zero.
    let there = question.to(backend.as_str());
    let question = question.payload(&there[field..field + 2]);
    assert_eq!(question.to(backend.as_str())[field..field + 2], [0xff, 0xff]);
    there_and_back(c, &question, &backend);

    let reply = question.reversed().payload(&[0, 0]);
    let reply = reply.payload(&reply[field..field + 2]);
    assert_eq!(reply[field..field + 2], [0xff, 0xff]);
    c.reply_from(&backend, &reply);
}

pub fn fields_chosen_by_the_sender_stay(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).flags("SEW").seq(u32::MAX).window(1).ttl(1).tos(0xb9).id(7);
    there_and_back(c, &request, &at.backends(1)[0]);
}

pub fn a_third_tag_is_one_too_many(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    c.forward(&at.to_web(40000).syn().qinq(300, 200).vlan(100)).passes();
}

pub fn a_chain_of_headers_that_is_too_long_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    if at.is_v6() {
        let request = at.to_web(40000).syn();
        let request = (0..5).fold(request, |request, _| request.destination_options());
        c.forward(&request).passes_for(Reason::UnknownProtocol);
        c.reverse(&request.reversed()).passes();
    }
}

pub fn a_header_that_leads_past_the_end_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).syn();
    let network = request.network_offset();
    let lying = if at.is_v6() {
        // The length of the first extension header, in units of eight bytes.
        request.hop_by_hop().with(move |bytes| bytes[network + 41] = 0xff)
    } else {
        request.with(move |bytes| bytes[network] = 0x4f)
    };
    c.forward(&lying).passes_for(Reason::Malformed);
    assert!(c.flows().is_empty());
}

pub fn replies_cut_off_at_every_length_pass(c: &mut Conversation, at: &Ends) {
    let (request, backend) = connect(c, at);
    let reply = request.reversed().ack().from(backend.as_str());
    for length in reply.transport_offset()..reply.len() {
        c.reverse(&reply.truncated(length)).passes();
    }
}

/// An earlier fault: a datagram that ended within the second half of its header was dropped as
/// unwritable, and left a flow.
pub fn datagrams_cut_off_at_every_length_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.dns(1));
    let question = at.to_dns(40000).payload(b"");
    for length in question.transport_offset()..question.len() {
        c.forward(&question.truncated(length)).passes_for(Reason::Malformed);
    }
    assert!(c.flows().is_empty());
}
