//! Bidirectional forwarding detection: packets of sessions that are up are answered.

use std::net::IpAddr;

use lb_common::header::Bfd;
use lb_common::layout::BfdSession;

use super::Ends;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, mac};
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{CLIENT_MAC, Packet, udp};

const SESSION: u32 = 0x0102_0304;
const PEER: u32 = 0xa1a2_a3a4;
const UP: u8 = 0xc0;

/// State and flags, both discriminators, and intervals that differ by the seed.
fn control(flags: u8, my: u32, your: u32, seed: u8) -> Bfd {
    let fields =
        [my.to_be_bytes(), your.to_be_bytes(), [0, 1, 0x86, 0xa0], [0, 1, seed, 0], [0; 4]];
    Bfd { version_and_diagnostic: 0x20, state_and_flags: flags, multiplier: 3, length: 24, fields }
}

fn octets(packet: &Bfd) -> Vec<u8> {
    packet.words().concat()
}

fn of_peer(flags: u8) -> Bfd {
    control(UP | flags, PEER, SESSION, 7)
}

fn own(flags: u8) -> Bfd {
    control(UP | 0x08 | flags, SESSION, PEER, 9)
}

fn peer(at: &Ends) -> IpAddr {
    at.elsewhere.parse().expect("an address")
}

fn session(at: &Ends) -> BfdSession {
    let local: IpAddr = at.node.parse().expect("an address");
    BfdSession {
        deadline: u64::MAX,
        peer: peer(at).into(),
        local: local.into(),
        expected: of_peer(0),
        answer: own(0),
        device: OUTSIDE,
        source_port: 50_001,
        destination_port: Bfd::ONE_HOP,
        min_hop_limit: 255,
        reserved: [0; 7],
    }
}

fn configure(c: &mut Conversation, at: &Ends, session: &BfdSession) {
    c.node_addresses(&[at.node]);
    configure_beside_node_ports(c, session);
}

/// At an address without NodePorts, as link-local ones.
fn configure_beside_node_ports(c: &mut Conversation, session: &BfdSession) {
    c.device(OUTSIDE, |_| {});
    c.bfd_session(SESSION, session);
}

fn packet(at: &Ends, content: &[u8]) -> Packet {
    let from = at.end(at.elsewhere, 49_155);
    udp(from.as_str(), at.end(at.node, Bfd::ONE_HOP).as_str())
        .ttl(255)
        .payload(content)
        .macs(CLIENT_MAC, mac(OUTSIDE))
}

fn answer(at: &Ends, content: &Bfd) -> Packet {
    let from = at.end(at.node, 50_001);
    udp(from.as_str(), at.end(at.elsewhere, Bfd::ONE_HOP).as_str())
        .ttl(255)
        .payload(&octets(content))
        .macs(mac(OUTSIDE), CLIENT_MAC)
}

/// A session, and a packet that is answered.
pub fn meet(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    c.forward(&packet(at, &octets(&of_peer(0)))).is_replaced_by(&answer(at, &own(0)));
}

/// With XDP, and in tc.
const ARRIVALS: [Hook; 2] = [Hook::Forward, Hook::Stack];

pub fn packets_of_a_session_are_answered(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    for hook in ARRIVALS {
        c.run(hook, &packet(at, &octets(&of_peer(0)))).is_replaced_by(&answer(at, &own(0)));
    }
    assert_eq!(c.bfd_answers(SESSION), 2);
    // Without a checksum, which only IPv4 allows.
    if !at.is_v6() {
        let plain = packet(at, &octets(&of_peer(0))).no_checksum();
        c.forward(&plain).is_replaced_by(&answer(at, &own(0)).no_checksum());
    }
}

pub fn a_poll_is_answered_with_final(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    for hook in ARRIVALS {
        let poll = packet(at, &octets(&of_peer(Bfd::POLL)));
        c.run(hook, &poll).is_replaced_by(&answer(at, &own(Bfd::FINAL)));
    }
}

#[track_caller]
fn is_left(c: &mut Conversation, packet: &Packet) {
    for hook in ARRIVALS {
        c.run(hook, packet).assert_passed();
    }
    assert_eq!(c.bfd_answers(SESSION), 0);
}

pub fn what_says_something_new_is_left_to_the_agent(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    let expected = octets(&of_peer(0));
    for octet in 0..expected.len() {
        let mut other = expected.clone();
        other[octet] ^= 1;
        is_left(c, &packet(at, &other));
    }
    // Down, and the answer to a poll.
    is_left(c, &packet(at, &octets(&control(0x40, PEER, SESSION, 7))));
    is_left(c, &packet(at, &octets(&of_peer(Bfd::FINAL))));
    // Longer, for example with authentication.
    is_left(c, &packet(at, &[&expected[..], &[0; 2]].concat()));
}

pub fn packets_of_others_are_left_to_the_agent(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    let right = packet(at, &octets(&of_peer(0)));
    is_left(c, &right.from(at.client(49_155).as_str()));
    // From behind a router.
    is_left(c, &right.ttl(254));
    is_left(c, &right.to(at.end(at.node, Bfd::SEVERAL_HOPS).as_str()));
    c.bfd_session(SESSION, &BfdSession { local: peer(at).into(), ..session(at) });
    is_left(c, &right);
}

/// The other interface may be a VLAN or a bond above the one on which XDP sees the packet.
pub fn what_arrives_on_another_interface_is_left_to_tc(c: &mut Conversation, at: &Ends) {
    configure(c, at, &BfdSession { device: INSIDE, ..session(at) });
    let right = packet(at, &octets(&of_peer(0)));
    c.forward(&right).is_deferred_for(&[]);
    c.forward(&right.vlan(100)).is_deferred_for(&[]);
    c.stack(&right).assert_passed();
    // Another session's, or of none.
    c.forward(&packet(at, &octets(&control(UP, PEER, SESSION + 1, 7)))).assert_passed();
    assert_eq!(c.bfd_answers(SESSION), 0);
}

pub fn packets_cut_off_at_every_length_are_left_to_the_agent(c: &mut Conversation, at: &Ends) {
    configure(c, at, &session(at));
    let right = packet(at, &octets(&of_peer(0)));
    let length = right.transport_offset() + 8 + 24;
    for length in right.network_offset()..length {
        c.forward(&right.truncated(length)).assert_passed();
    }
    assert_eq!(c.bfd_answers(SESSION), 0);
    // Padding of short frames.
    let padded = right.padded(length + 6);
    c.forward(&padded).is_replaced_by(&answer(at, &own(0)).padded(length + 6));
}

pub fn nothing_is_answered_after_the_deadline(c: &mut Conversation, at: &Ends) {
    configure(c, at, &BfdSession { deadline: 1, ..session(at) });
    is_left(c, &packet(at, &octets(&of_peer(0))));
}

pub fn a_session_over_several_hops_is_answered(c: &mut Conversation, at: &Ends) {
    let several = BfdSession {
        destination_port: Bfd::SEVERAL_HOPS,
        min_hop_limit: 250,
        device: 0,
        ..session(at)
    };
    configure(c, at, &several);
    let to_several = |packet: Packet, to: &str| packet.to(at.end(to, Bfd::SEVERAL_HOPS).as_str());
    let packet = to_several(packet(at, &octets(&of_peer(0))), at.node);
    is_left(c, &packet.ttl(249));
    c.forward(&packet.ttl(250)).is_replaced_by(&to_several(answer(at, &own(0)), at.elsewhere));
}

/// The peer's and this node's link-local address.
fn link_local(at: &Ends) -> [&'static str; 2] {
    if at.is_v6() { ["fe80::99", "fe80::1"] } else { ["169.254.0.99", "169.254.0.1"] }
}

fn link_local_session(at: &Ends) -> BfdSession {
    let [peer, local] = link_local(at).map(|text| text.parse::<IpAddr>().expect("an address"));
    BfdSession { peer: peer.into(), local: local.into(), ..session(at) }
}

fn link_local_packet(at: &Ends, content: &Bfd) -> Packet {
    let [peer, local] = link_local(at);
    let from = at.end(peer, 49_155);
    packet(at, &octets(content)).from(from.as_str()).to(at.end(local, Bfd::ONE_HOP).as_str())
}

fn link_local_answer(at: &Ends, content: &Bfd) -> Packet {
    let [peer, local] = link_local(at);
    let from = at.end(local, 50_001);
    answer(at, content).from(from.as_str()).to(at.end(peer, Bfd::ONE_HOP).as_str())
}

pub fn packets_between_link_local_addresses_are_answered(c: &mut Conversation, at: &Ends) {
    configure_beside_node_ports(c, &link_local_session(at));
    for hook in ARRIVALS {
        let packet = link_local_packet(at, &of_peer(0));
        c.run(hook, &packet).is_replaced_by(&link_local_answer(at, &own(0)));
        let poll = link_local_packet(at, &of_peer(Bfd::POLL));
        c.run(hook, &poll).is_replaced_by(&link_local_answer(at, &own(Bfd::FINAL)));
    }
    assert_eq!(c.bfd_answers(SESSION), 4);
}

/// Another interface may have the same addresses.
pub fn a_link_local_session_is_of_one_interface(c: &mut Conversation, at: &Ends) {
    let right = link_local_packet(at, &of_peer(0));
    configure_beside_node_ports(c, &BfdSession { device: INSIDE, ..link_local_session(at) });
    c.forward(&right).is_deferred_for(&[]);
    c.stack(&right).assert_passed();
    c.bfd_session(SESSION, &link_local_session(at));
    let [peer, local] = link_local(at);
    is_left(c, &right.from(at.end(local, 49_155).as_str()));
    is_left(c, &right.to(at.end(peer, Bfd::ONE_HOP).as_str()));
    is_left(c, &right.to(at.end(local, Bfd::SEVERAL_HOPS).as_str()));
    is_left(c, &right.ttl(254));
    // A frame for another machine, on a switch that floods. XDP leaves it to tc.
    c.stack(&right.macs(CLIENT_MAC, mac(INSIDE))).assert_passed();
    let length = right.transport_offset() + 8 + 24;
    for length in right.network_offset()..length {
        c.forward(&right.truncated(length)).assert_passed();
    }
    c.bfd_session(SESSION, &BfdSession { deadline: 1, ..link_local_session(at) });
    is_left(c, &right);
}

/// For example one on the loopback interface, or if NodePorts have addresses of their own.
pub fn a_session_at_an_address_without_node_ports_is_answered(c: &mut Conversation, at: &Ends) {
    configure_beside_node_ports(c, &session(at));
    c.forward(&packet(at, &octets(&of_peer(0)))).is_replaced_by(&answer(at, &own(0)));
    let several = BfdSession {
        destination_port: Bfd::SEVERAL_HOPS,
        min_hop_limit: 250,
        device: 0,
        ..session(at)
    };
    c.bfd_session(SESSION, &several);
    let to_several = |packet: Packet, to: &str| packet.to(at.end(to, Bfd::SEVERAL_HOPS).as_str());
    let packet = to_several(packet(at, &octets(&of_peer(0))), at.node).ttl(250);
    c.forward(&packet).is_replaced_by(&to_several(answer(at, &own(0)), at.elsewhere));
}

pub fn fragments_are_left_to_the_agent(c: &mut Conversation, at: &Ends) {
    configure_beside_node_ports(c, &session(at));
    let whole = packet(at, &octets(&of_peer(0)));
    // As if more followed; in IPv6, an extension header says so.
    let flags = whole.network_offset() + 6;
    let fragment = match at.is_v6() {
        true => whole.fragment(..24),
        false => whole.with(move |bytes| bytes[flags] = 0x20),
    };
    is_left(c, &fragment);
}

pub fn a_service_may_use_the_port(c: &mut Conversation, at: &Ends) {
    c.set(&at.service(Bfd::ONE_HOP, "UDP", 1));
    let local: IpAddr = at.cluster_address().parse().expect("an address");
    configure(c, at, &BfdSession { local: local.into(), ..session(at) });
    let packet = packet(at, &octets(&of_peer(0))).to(at.cluster(Bfd::ONE_HOP).as_str());
    c.request_to(&at.backends(1)[0], &packet);
    assert_eq!(c.bfd_answers(SESSION), 0);
}
