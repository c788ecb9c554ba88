//! ARP and neighbour discovery: requests for announced addresses, and claims of other machines.

use std::net::{IpAddr, Ipv6Addr};

use lb_common::layout::NeighbourEvent;

use super::Ends;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, mac};
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{CLIENT_MAC, Mac, Packet, arp_message, icmp, packet_too_big};

const NOBODY: Mac = Mac([0; 6]);
const BROADCAST: Mac = Mac([0xff; 6]);
const ALL_NODES: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
const OTHER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);

/// The announced address of a case.
pub fn announced(at: &Ends) -> String {
    address_of(&at.load_balancer(80))
}

fn client(at: &Ends) -> String {
    address_of(&at.client(1))
}

fn address_of(end: &str) -> String {
    let end: std::net::SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}

fn octets(address: &str) -> [u8; 16] {
    let address: Ipv6Addr = address.parse().expect("an IPv6 address");
    address.octets()
}

/// The external device with its addresses, and the announcement.
fn announce(c: &mut Conversation, at: &Ends) {
    c.device(OUTSIDE, |_| {});
    c.announce(&announced(at), false);
}

fn own() -> Mac {
    mac(OUTSIDE)
}

fn group(address: &str) -> (String, Mac) {
    let [.., a, b, c] = octets(address);
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    (group.to_string(), Mac([0x33, 0x33, 0xff, a, b, c]))
}

/// A solicitation with these options.
fn solicitation(from: &str, target: &str, options: &[u8]) -> Packet {
    let (to, link) = group(target);
    icmp(from, to.as_str(), 135, 0)
        .ttl(255)
        .payload(&[&octets(target), options].concat())
        .macs(CLIENT_MAC, link)
}

fn source_link(mac: Mac) -> Vec<u8> {
    [&[1, 1], &mac.0[..]].concat()
}

/// An advertisement of a machine with its link-layer address as an option.
fn advertisement(source: &str, to: &str, target: &str, mac: Mac, flags: u8) -> Packet {
    let option = [&[2, 1], &mac.0[..]].concat();
    icmp(source, to, 136, 0)
        .ttl(255)
        .rest([flags, 0, 0, 0])
        .payload(&[&octets(target), &option[..]].concat())
        .macs(mac, ALL_NODES)
}

/// What a client sends to all to learn an address, with the reply it expects.
pub fn request(at: &Ends, target: &str) -> Packet {
    if at.is_v6() {
        solicitation(&client(at), target, &source_link(CLIENT_MAC))
    } else {
        let to = (NOBODY, target);
        arp_message(1, (CLIENT_MAC, client(at).as_str()), to).macs(CLIENT_MAC, BROADCAST)
    }
}

fn answer(at: &Ends, target: &str) -> Packet {
    if at.is_v6() {
        advertisement(target, &client(at), target, own(), 0x60).macs(own(), CLIENT_MAC)
    } else {
        arp_message(2, (own(), target), (CLIENT_MAC, client(at).as_str()))
    }
}

/// What a machine sends to see whether an address is in use, with the reply it expects.
fn probe(at: &Ends, target: &str) -> Packet {
    if at.is_v6() {
        // With a nonce (RFC 7527), as Linux sends.
        solicitation("::", target, &[14, 1, 1, 2, 3, 4, 5, 6])
    } else {
        arp_message(1, (CLIENT_MAC, "0.0.0.0"), (NOBODY, target)).macs(CLIENT_MAC, BROADCAST)
    }
}

fn defence(at: &Ends, target: &str) -> Packet {
    if at.is_v6() {
        advertisement(target, "ff02::1", target, own(), 0x20)
    } else {
        arp_message(2, (own(), target), (CLIENT_MAC, "0.0.0.0"))
    }
}

/// What another machine sends when it takes an address.
fn gratuitous(at: &Ends, address: &str, mac: Mac) -> Packet {
    if at.is_v6() {
        advertisement(address, "ff02::1", address, mac, 0x20)
    } else {
        arp_message(1, (mac, address), (NOBODY, address)).macs(mac, BROADCAST)
    }
}

/// The reply of another machine that has an address, to this one.
fn reply_of(at: &Ends, address: &str, mac: Mac) -> Packet {
    if at.is_v6() {
        advertisement(address, "2001:db8::1", address, mac, 0x60).macs(mac, own())
    } else {
        arp_message(2, (mac, address), (own(), "192.0.2.1"))
    }
}

fn answers(c: &Conversation, at: &Ends) -> u64 {
    c.count_of(if at.is_v6() { NeighbourEvent::Ndp } else { NeighbourEvent::Arp })
}

/// In tc, with and without XDP before it.
const AT_TC: [Hook; 2] = [Hook::Stack, Hook::AfterXdp];

#[track_caller]
fn passes(c: &mut Conversation, packet: &Packet) {
    for hook in AT_TC {
        c.run(hook, packet).passes();
    }
}

pub fn requests_for_an_announced_address_are_answered(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    for hook in AT_TC {
        c.run(hook, &request(at, &address)).is_replaced_by(&answer(at, &address));
    }
    assert_eq!(answers(c, at), 2);
    // XDP leaves them to tc, and the stack sends its own.
    c.forward(&request(at, &address)).passes();
    c.reverse(&request(at, &address)).passes();
    c.reverse(&answer(at, &address)).passes();
    assert_eq!(answers(c, at), 2);
}

/// A client that verifies its cached entry sends to the address it knows.
pub fn requests_to_this_machine_alone_are_answered(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    // An address of a Service: its ICMP packets take another path.
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    let address = announced(at);
    let unicast = request(at, &address).macs(CLIENT_MAC, own());
    let unicast = if at.is_v6() { unicast.to(address.as_str()) } else { unicast };
    for hook in AT_TC {
        c.run(hook, &unicast).is_replaced_by(&answer(at, &address));
    }
    c.forward(&unicast).passes();
    // Seen on a bridge: a probe of another node.
    passes(c, &unicast.macs(CLIENT_MAC, OTHER_MAC));
}

pub fn probes_of_an_announced_address_are_answered(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    for hook in AT_TC {
        c.run(hook, &probe(at, &address)).is_replaced_by(&defence(at, &address));
        // The probe of one node at another.
        let unicast = probe(at, &address).macs(CLIENT_MAC, own());
        c.run(hook, &unicast).is_replaced_by(&defence(at, &address));
    }
}

pub fn requests_for_other_addresses_pass(c: &mut Conversation, at: &Ends) {
    c.device(OUTSIDE, |_| {});
    let address = announced(at);
    passes(c, &request(at, &address));
    c.announce(at.elsewhere, false);
    passes(c, &request(at, &address));
    // The deadline has passed.
    c.announce(&address, true);
    passes(c, &request(at, &address));
    assert_eq!(c.count_of(NeighbourEvent::Expired), 2);
    c.announce(&address, false);
    c.stack(&request(at, &address)).is_replaced_by(&answer(at, &address));
}

/// The stack answers for what it has.
pub fn the_nodes_own_addresses_are_left_to_the_stack(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    // The node's address on this interface.
    c.announce(at.node, false);
    passes(c, &request(at, at.node));
    // Its address on another interface.
    let address = announced(at);
    c.node_addresses(&[&address]);
    passes(c, &request(at, &address));
    c.node_addresses(&[at.node]);
    c.stack(&request(at, &address)).is_replaced_by(&answer(at, &address));
}

/// Without the interface's entry, there is no address to answer with.
pub fn an_unknown_interface_answers_nothing(c: &mut Conversation, at: &Ends) {
    // The initial entry has no link-layer address.
    c.announce(&announced(at), false);
    passes(c, &request(at, &announced(at)));
    c.device(INSIDE, |_| {});
    passes(c, &request(at, &announced(at)));
}

pub fn pods_ask_their_node(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    c.from_pod(&request(at, &announced(at))).passes();
}

pub fn tags_of_requests_stay(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    let (request, answer) = (request(at, &address), answer(at, &address));
    c.stack(&request.vlan(100)).is_replaced_by(&answer.vlan(100));
    c.stack(&request.qinq(200, 100)).is_replaced_by(&answer.qinq(200, 100));
}

/// Ethernet pads short frames.
pub fn what_follows_a_request_is_not_sent_back(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    for length in [60, 100, 1400] {
        let padded = request(at, &address).padded(length);
        c.stack(&padded).is_replaced_by(&answer(at, &address));
    }
}

pub fn claims_of_other_machines_are_noted(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    // Not watched.
    passes(c, &gratuitous(at, &address, OTHER_MAC));
    assert_eq!(c.claimant(&address), None);
    c.watch(&address);
    assert_eq!(c.claimant(&address), None);
    passes(c, &gratuitous(at, &address, OTHER_MAC));
    assert_eq!(c.claimant(&address), Some(OTHER_MAC));
    passes(c, &reply_of(at, &address, CLIENT_MAC));
    assert_eq!(c.claimant(&address), Some(CLIENT_MAC));
    assert_eq!(c.count_of(NeighbourEvent::Claimed), 4);
    // The node's own frames, returned by the network.
    c.watch(&address);
    passes(c, &gratuitous(at, &address, own()));
    // Requests and probes claim nothing, nor do packets that only pass XDP.
    c.stack(&request(at, &address)).is_replaced_by(&answer(at, &address));
    c.stack(&probe(at, &address)).is_replaced_by(&defence(at, &address));
    c.forward(&gratuitous(at, &address, OTHER_MAC)).passes();
    assert_eq!(c.claimant(&address), None);
}

/// A machine that asks with the address as its own.
pub fn a_request_from_an_address_claims_it(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    c.watch(&address);
    if at.is_v6() {
        // The option counts, not the frame's sender.
        let claim = gratuitous(at, &address, OTHER_MAC).macs(CLIENT_MAC, ALL_NODES);
        passes(c, &claim);
    } else {
        let asks = arp_message(1, (OTHER_MAC, address.as_str()), (NOBODY, "192.0.2.1"));
        passes(c, &asks.macs(OTHER_MAC, BROADCAST));
    }
    assert_eq!(c.claimant(&address), Some(OTHER_MAC));
}

pub fn requests_cut_off_at_every_length_pass(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    c.watch(&announced(at));
    let whole = request(at, &announced(at));
    // As in `foreign`.
    let shortest = 14 + if at.is_v6() { 40 } else { 20 };
    for length in shortest..whole.len() {
        passes(c, &whole.truncated(length));
    }
    let claim = gratuitous(at, &announced(at), OTHER_MAC);
    for length in shortest..claim.len() {
        passes(c, &claim.truncated(length));
    }
    assert_eq!(c.claimant(&announced(at)), None);
    assert_eq!(answers(c, at), 0);
}

pub fn malformed_requests_pass(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let address = announced(at);
    c.watch(&address);
    let request = request(at, &address);
    let set = |offset: usize, value: u8| request.with(move |bytes| bytes[offset] = value);
    // From a multicast address, and from the address of all zeros.
    passes(c, &request.macs(Mac([3, 0, 0, 0, 0, 1]), BROADCAST));
    passes(c, &request.macs(NOBODY, BROADCAST));
    let network = request.network_offset();
    if at.is_v6() {
        malformed_solicitations(c, &request, &address);
        return;
    }
    // Another hardware, protocol, or length of either; an unknown operation.
    for (offset, value) in [(0, 1), (1, 6), (2, 0x86), (3, 1), (4, 8), (5, 16), (6, 1), (7, 3)] {
        passes(c, &set(network + offset, value));
    }
    let asked = (NOBODY, address.as_str());
    let client = client(at);
    for sender in [NOBODY, BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        let request = arp_message(1, (sender, client.as_str()), asked);
        passes(c, &request.macs(CLIENT_MAC, BROADCAST));
        passes(c, &gratuitous(at, &address, sender).macs(CLIENT_MAC, BROADCAST));
    }
    assert_eq!(c.claimant(&address), None);
}

fn malformed_solicitations(c: &mut Conversation, request: &Packet, address: &str) {
    let from = "2001:db8:51::7";
    let asks = |options: &[u8]| solicitation(from, address, options);
    let link = source_link(CLIENT_MAC);
    // From behind a router; a wrong checksum; another code.
    passes(c, &request.ttl(254));
    let checksum = request.transport_offset() + 2;
    passes(c, &request.with(move |bytes| bytes[checksum] ^= 1));
    let (to, group_link) = group(address);
    let body = [&octets(address), &link[..]].concat();
    let coded = icmp(from, to.as_str(), 135, 1).ttl(255).payload(&body);
    passes(c, &coded.macs(CLIENT_MAC, group_link));
    // Options without a length, and past the end.
    for options in
        [[1, 0, 0, 0, 0, 0, 0, 0], [1, 2, 2, 0, 0, 0, 0, 0xc1], [9, 255, 0, 0, 0, 0, 0, 0]]
    {
        passes(c, &asks(&options));
        passes(c, &asks(&[&[14, 1, 0, 0, 0, 0, 0, 0], &options[..]].concat()));
    }
    // Not whole units.
    passes(c, &asks(&link[..4]));
    // Duplicate address detection that gives a link-layer address, or is sent to one machine.
    passes(c, &solicitation("::", address, &link));
    passes(c, &solicitation("::", address, &[]).to(address));
    // To neither the target nor a group; an extension header; a fragment.
    passes(c, &request.to("2001:db8::1"));
    passes(c, &request.hop_by_hop());
    passes(c, &request.fragment(..8));
    // A multicast target.
    c.announce("ff02::99", false);
    let multicast = [&octets("ff02::99"), &link[..]].concat();
    let request = icmp(from, "ff02::1", 135, 0).ttl(255).payload(&multicast);
    passes(c, &request.macs(CLIENT_MAC, ALL_NODES));
    // A claim to all that says it was asked for.
    passes(c, &advertisement(address, "ff02::1", address, OTHER_MAC, 0x60));
    assert_eq!(c.claimant(address), None);
}

/// Other neighbour discovery passes, and so do long messages.
pub fn options_of_requests_are_skipped(c: &mut Conversation, at: &Ends) {
    if !at.is_v6() {
        return;
    }
    announce(c, at);
    let address = announced(at);
    let (link, nonce) = (source_link(CLIENT_MAC), [14, 1, 1, 2, 3, 4, 5, 6]);
    let long = |units: u8| [&[253, units], &vec![7; usize::from(units) * 8 - 2][..]].concat();
    for options in [
        vec![],
        nonce.to_vec(),
        [&nonce[..], &link].concat(),
        [&link[..], &nonce].concat(),
        long(13),
        [&long(6)[..], &link, &long(5), &nonce].concat(),
        nonce.repeat(13),
    ] {
        for hook in AT_TC {
            let request = solicitation(&client(at), &address, &options);
            c.run(hook, &request).is_replaced_by(&answer(at, &address));
        }
    }
    passes(c, &solicitation(&client(at), &address, &long(14)));
    passes(c, &solicitation(&client(at), &address, &nonce.repeat(14)));
    for kind in [133, 134, 137] {
        let (to, link) = group(&address);
        let other = icmp(client(at).as_str(), to.as_str(), kind, 0).ttl(255);
        passes(c, &other.payload(&octets(&address)).macs(CLIENT_MAC, link));
    }
}

/// A router on the link may send errors with the hop limit of neighbour discovery.
pub fn errors_from_the_link_are_still_translated(c: &mut Conversation, at: &Ends) {
    announce(c, at);
    let (request, backend) = super::connect(c, at);
    let router: IpAddr = at.elsewhere.parse().expect("an address");
    let reply = request.reversed().psh_ack().payload(&[7; 100]);
    c.reply_from(&backend, &reply);
    let seen = reply.from(backend.as_str());
    let error = packet_too_big(router, &reply, 1400).ttl(255);
    let translated = packet_too_big(router, &seen, 1400).ttl(255);
    c.stack(&error).becomes(&translated);
}
