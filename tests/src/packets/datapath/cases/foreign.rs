//! Packets that do not belong to a Service pass unchanged.

use lb_common::layout::Reason;

use super::Ends;
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{Packet, arp, icmp_echo, ip, raw, tcp, udp};

/// Sends a packet that the prefilter does not match, at both hooks.
fn pass(c: &mut Conversation, packet: &Packet) {
    c.run(Hook::Forward, packet).passes();
    c.run(Hook::Reverse, packet).passes();
}

pub fn packets_to_other_addresses_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let elsewhere = at.end(at.elsewhere, 80);
    let client = at.client(40000);
    pass(c, &tcp(client.as_str(), elsewhere.as_str()).syn());
    pass(c, &udp(client.as_str(), elsewhere.as_str()).payload(b"x"));
    pass(c, &icmp_echo(client_address(at).as_str(), at.elsewhere));
    assert!(c.flows().is_empty());
}

pub fn other_protocols_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let frontend = at.cluster(80);
    let address = address_of(&frontend);
    let client = client_address(at);
    pass(c, &arp("192.0.2.2", "192.0.2.1"));
    for packet in [
        icmp_echo(client.as_str(), address.as_str()),
        ip(client.as_str(), address.as_str(), 47).payload(b"tunnel"),
    ] {
        c.run(Hook::Forward, &packet).passes_for(Reason::UnknownProtocol);
        c.run(Hook::Reverse, &packet).passes();
    }
}

pub fn truncated_packets_pass_at_every_length(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let whole = at.to_web(40000).syn();
    // BPF_PROG_TEST_RUN accepts nothing shorter than an Ethernet header, and for tc nothing shorter than
    // an IP header.
    let network_ends = 14 + if at.is_v6() { 40 } else { 20 };
    for length in 14..whole.len() {
        let cut = whole.truncated(length);
        let processed = c.run(Hook::Forward, &cut);
        assert!(processed.outcome.passed(), "{length}");
        assert_eq!(processed.outcome.bytes, cut[..], "{length}");
        if length >= network_ends {
            let processed = c.run(Hook::Reverse, &cut);
            assert_eq!(processed.outcome.bytes, cut[..], "{length}");
        }
    }
    assert!(c.flows().is_empty());
}

pub fn nonsense_in_headers_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).syn();
    let network = request.network_offset();
    for version in [0x00, 0x10, 0x40, 0x44, 0x54, 0xf5] {
        let nonsense = request.with(move |bytes| bytes[network] = version);
        let processed = c.run(Hook::Forward, &nonsense);
        // 0x6_ is the version of IPv6.
        assert!(processed.outcome.passed(), "{version:#x}");
        assert_eq!(processed.outcome.bytes, nonsense[..], "{version:#x}");
    }
    pass(c, &raw(&[0xff; 64]));
    pass(c, &raw(&[0; 64]));
}

fn client_address(at: &Ends) -> String {
    address_of(&at.client(1))
}

fn address_of(end: &str) -> String {
    let end: std::net::SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}
