//! Tunnel keys.

use lb_common::layout::{Forwarding, Reason};

use super::Ends;
use super::tunnels::{KINDS, PORT, ROUTER_MAC, arriving, leaving, network, receive, send};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, mac, neighbour};
use crate::packets::{CLIENT_MAC, NODE_MAC, Packet, packet_too_big, udp};

pub(super) const KEY: u64 = 0x0123_4567_89ab_cdef;
const OTHER: u64 = 0xfedc_ba98_7654_3210;

/// Inserts a GUE header of version 0 with two words of private data after the UDP header of a tunnel.
pub(super) fn keyed(at: &Ends, tunnel: &Packet, key: u64) -> Packet {
    marked(at, tunnel, key, 0)
}

/// A packet in a tunnel with a key, marked as a question or its reply.
pub(super) fn marked(at: &Ends, tunnel: &Packet, key: u64, mark: u8) -> Packet {
    let gue = [&[2, if at.is_v6() { 41 } else { 4 }, 0, mark], &key.to_be_bytes()[..]].concat();
    tunnel.payload(&[&gue[..], &tunnel[behind_udp(at, tunnel)..]].concat()).no_checksum()
}

/// The offset of the end of a tunnel's UDP header.
fn behind_udp(at: &Ends, tunnel: &Packet) -> usize {
    network(tunnel) + if at.is_v6() { 48 } else { 28 }
}

pub fn a_keyed_tunnel_is_sent_whatever_the_kind(c: &mut Conversation, at: &Ends) {
    c.tunnel_keys([KEY, OTHER]);
    for (kind, port) in KINDS {
        let backend = send(c, at, kind);
        let request = at.to_web(port);
        for packet in [request.syn(), request.ack(), request.psh_ack().payload(b"question")] {
            let plain = leaving(at, Forwarding::Gue, &packet, &request, &backend);
            c.forward(&packet).leaves_by(INSIDE, &keyed(at, &plain, KEY));
        }
    }
}

pub fn tunnels_with_a_key_of_the_cluster_are_accepted(c: &mut Conversation, at: &Ends) {
    c.tunnel_keys([KEY, OTHER]);
    let backend = receive(c, at, Forwarding::Gue, 1).remove(0);
    for (number, key) in [KEY, OTHER].into_iter().enumerate() {
        let request = at.to_web(40000 + number as u16);
        for packet in [request.syn(), request.ack()] {
            let tunnel = arriving(at, Forwarding::Gue, &packet, &backend);
            c.forward(&keyed(at, &tunnel, key)).becomes(&packet.to(backend.as_str()));
        }
    }
}

/// A pod can send such packets, and the network plugin masquerades them to its node's address.
pub fn tunnels_without_the_key_are_refused(c: &mut Conversation, at: &Ends) {
    let backend = receive(c, at, Forwarding::Gue, 1).remove(0);
    let request = at.to_web(40000).syn();
    let plain = arriving(at, Forwarding::Gue, &request, &backend);
    let right = keyed(at, &plain, KEY);
    for keys in [[KEY, 0], [KEY, OTHER]] {
        c.tunnel_keys(keys);
        c.forward(&plain).passes_for(Reason::WrongTunnelKey);
        for wrong in [0, KEY ^ 1, KEY ^ 1 << 63, KEY.swap_bytes()] {
            c.forward(&keyed(at, &plain, wrong)).passes_for(Reason::WrongTunnelKey);
        }
        // Another version, another payload, a flag, a longer header.
        let gue = behind_udp(at, &right);
        for (at, wrong) in [(0, 0x42), (0, 0x22), (1, 17), (2, 0x80), (0, 3)] {
            c.forward(&right.with(move |bytes| bytes[gue + at] = wrong))
                .passes_for(Reason::WrongTunnelKey);
        }
        // Truncated within the key.
        c.forward(&plain.with(move |bytes| bytes.truncate(gue + 8)))
            .passes_for(Reason::WrongTunnelKey);
        c.forward(&arriving(at, Forwarding::Ipip, &request, &backend))
            .passes_for(Reason::UnknownProtocol);
    }
    assert!(c.flows().is_empty());
    c.forward(&right).becomes(&request.to(backend.as_str()));
}

/// A node without a key treats the key as the encapsulated packet.
pub fn tunnels_with_a_key_pass_a_node_without(c: &mut Conversation, at: &Ends) {
    let backend = receive(c, at, Forwarding::Gue, 1).remove(0);
    let tunnel = arriving(at, Forwarding::Gue, &at.to_web(40000).syn(), &backend);
    c.forward(&keyed(at, &tunnel, KEY)).passes_for(Reason::UnknownProtocol);
    assert!(c.flows().is_empty());
}

pub fn a_key_counts_among_what_must_fit(c: &mut Conversation, at: &Ends) {
    c.tunnel_keys([KEY, 0]);
    let backend = send(c, at, Forwarding::Gue);
    let request = at.to_web(40000);
    let (overhead, headers) = if at.is_v6() { (60, 60) } else { (40, 40) };
    let most = 1500 - overhead - headers;
    let fits = request.psh_ack().payload(&vec![7; most]);
    let plain = leaving(at, Forwarding::Gue, &fits, &request, &backend);
    c.forward(&fits).leaves_by(INSIDE, &keyed(at, &plain, KEY));
    let more = request.psh_ack().payload(&vec![7; most + 1]);
    let error = packet_too_big(at.cluster_address(), &more, 1500 - overhead as u16);
    let error = error.quoting_only(8).id(0).macs(NODE_MAC, CLIENT_MAC);
    c.forward(&more).is_answered_by(&error, Reason::TooBig);
    c.stack(&more).is_answered_by(&error, Reason::TooBig);
}

pub fn automatic_tunnels_lead_to_nodes_that_return_probes(c: &mut Conversation, at: &Ends) {
    c.tunnel_keys([KEY, 0]);
    let backend = send(c, at, Forwarding::Auto);
    c.exit(backend_address(&backend).as_str(), neighbour(INSIDE, ROUTER_MAC));
    // Another node has been probed, this one not.
    c.tunnel_peer(at.node);
    let request = at.to_web(40000).syn();
    let masqueraded = request.to(backend.as_str()).ttl(63).macs(mac(INSIDE), ROUTER_MAC);
    c.forward(&request).leaves_with_snat_by(INSIDE, &masqueraded);
    c.tunnel_peer(at.elsewhere);
    let request = at.to_web(40001).syn();
    let plain = leaving(at, Forwarding::Gue, &request, &request, &backend);
    c.forward(&request).leaves_by(INSIDE, &keyed(at, &plain, KEY));
    // The first connection stays as it began.
    let request = at.to_web(40000).ack();
    let masqueraded = request.to(backend.as_str()).ttl(63).macs(mac(INSIDE), ROUTER_MAC);
    c.forward(&request).leaves_with_snat_by(INSIDE, &masqueraded);
}

fn backend_address(end: &str) -> String {
    super::tunnels::address(end)
}

/// A probe of another node from its port 50000: the message's type, and the key.
fn probe(at: &Ends, kind: u8, key: u64) -> Packet {
    let message = [&[0x22, kind, 0, 0], &key.to_be_bytes()[..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
    let ends = [at.end(at.elsewhere, 50000), at.end(at.node, PORT)];
    udp(ends[0].as_str(), ends[1].as_str()).payload(&message)
}

pub fn probes_with_a_key_of_the_cluster_are_returned(c: &mut Conversation, at: &Ends) {
    receive(c, at, Forwarding::Auto, 1);
    c.device(OUTSIDE, |_| {});
    c.tunnel_keys([KEY, OTHER]);
    for key in [KEY, OTHER] {
        let returned = probe(at, 2, key).reversed();
        c.forward(&probe(at, 1, key)).is_replaced_by(&returned);
        c.stack(&probe(at, 1, key)).is_replaced_by(&returned);
        let unchecked = probe(at, 1, key).no_checksum();
        c.forward(&unchecked).is_replaced_by(&returned.no_checksum());
    }
    // What XDP cannot send is left to tc.
    c.device(OUTSIDE, |device| device.transmit = false);
    c.forward(&probe(at, 1, KEY)).is_deferred_for(&[]);
}

/// A node says that it returns packets about whose connections it is asked, if there is room.
pub fn probes_with_room_show_what_else_a_node_does(c: &mut Conversation, at: &Ends) {
    receive(c, at, Forwarding::Auto, 1);
    c.device(OUTSIDE, |_| {});
    c.tunnel_keys([KEY, 0]);
    let longer = |kind, room: &[u8]| {
        let probe = probe(at, kind, KEY);
        probe.payload(&[&probe[probe.len() - 20..], room].concat())
    };
    let returned = longer(2, &[0, 2]).reversed();
    c.forward(&longer(1, &[0, 0])).is_replaced_by(&returned);
    c.forward(&longer(1, &[7, 9])).is_replaced_by(&returned);
    c.stack(&longer(1, &[0, 0]).no_checksum()).is_replaced_by(&returned.no_checksum());
    for room in [&[0][..], &[0; 3], &[0; 40]] {
        c.forward(&longer(1, room)).is_replaced_by(&longer(2, room).reversed());
    }
}

pub fn other_probes_pass(c: &mut Conversation, at: &Ends) {
    receive(c, at, Forwarding::Auto, 1);
    c.tunnel_keys([KEY, 0]);
    // Another key, a reply, and other messages.
    for wrong in [probe(at, 1, OTHER), probe(at, 1, 0), probe(at, 2, KEY), probe(at, 3, KEY)] {
        c.forward(&wrong).passes_for(Reason::WrongTunnelKey);
    }
    // From a machine that is not a node.
    let stranger = probe(at, 1, KEY).from(at.client(50000).as_str());
    c.forward(&stranger).passes_for(Reason::NotAPeer);
    for length in 1..probe(at, 1, KEY).len() - 14 - 8 {
        let cut = probe(at, 1, KEY).truncated(14 + length);
        let passed = c.forward(&cut);
        if passed.outcome.passed() {
            assert_eq!(passed.outcome.bytes, cut[..], "{length}");
        }
    }
    // Without a key, none is accepted.
    c.tunnel_keys([0, 0]);
    c.forward(&probe(at, 1, KEY)).passes_for(Reason::UnknownProtocol);
}

/// The client's packets must fit in the tunnel.
pub fn the_segment_size_fits_in_the_tunnel(c: &mut Conversation, at: &Ends) {
    c.tunnel_keys([KEY, 0]);
    c.device(OUTSIDE, |_| {});
    let backend = receive(c, at, Forwarding::Gue, 1).remove(0);
    // The MTU is 1500; outer and inner IP header, 20 octets of UDP and GUE, and TCP's header.
    let most = 1500 - if at.is_v6() { 40 + 20 + 40 + 20 } else { 20 + 20 + 20 + 20 };
    for (number, announced, expected) in [(0, 1460, most), (1, most, most), (2, 536, 536)] {
        let request = at.to_web(40000 + number);
        let syn = arriving(at, Forwarding::Gue, &request.syn(), &backend);
        c.forward(&keyed(at, &syn, KEY)).becomes(&request.syn().to(backend.as_str()));
        let reply = request.reversed().syn_ack();
        let from_backend = reply.mss(announced).from(backend.as_str());
        c.reverse(&from_backend).becomes(&reply.mss(expected));
        // Only when a connection begins, and whatever precedes the option.
        let later = request.reversed().ack().mss(announced);
        c.reverse(&later.from(backend.as_str())).becomes(&later);
    }
    // A connection that came without a tunnel keeps its own.
    let request = at.to_web(42000);
    c.forward(&request.syn()).becomes(&request.syn().to(backend.as_str()));
    let reply = request.reversed().syn_ack().mss(1460);
    c.reverse(&reply.from(backend.as_str())).becomes(&reply);
}
