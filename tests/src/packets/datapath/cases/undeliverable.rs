//! Packets that the data plane cannot transmit: no route, larger than the MTU, an expired hop limit, or an interface
//! without an address.

use lb_common::host::Exit;
use lb_common::layout::Reason;

use super::Ends;
use super::next_hop::{
    ROUTER_MAC, address, dns_behind, forwarded, open, request, service_behind, service_elsewhere,
};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{ASIDE, INSIDE, UNKNOWN, mac, neighbour};
use crate::packets::{
    CLIENT_MAC, NODE_MAC, Packet, packet_too_big, port_unreachable, time_exceeded,
};

/// The error that the data plane sends: from the frontend, quoting the ports.
pub fn sent_by_balancer(error: &Packet) -> Packet {
    error.quoting_only(8).macs(NODE_MAC, CLIENT_MAC).ttl(64).id(0)
}

/// A frame with an IP packet of this length.
pub fn of_length(packet: &Packet, length: usize) -> Packet {
    let headers = packet.payload(&[]).ip_bytes().len();
    packet.payload(&vec![0x5a; length - headers])
}

pub fn without_a_route_packets_are_dropped(c: &mut Conversation, at: &Ends) {
    let backend = service_elsewhere(c, at);
    c.forward(&request(at).syn()).is_dropped_for(Reason::NoRoute);
    assert!(c.flows().is_empty());
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let snat = open(c, &request(at), &backend, INSIDE);
    c.no_exit(&address(&backend));
    let more = request(at).psh_ack().payload(b"more");
    c.forward(&more).is_dropped_for(Reason::NoRoute);
    c.stack(&more).is_dropped_for(Reason::NoRoute);
    // The connection continues once there is a route again.
    c.exit(&address(&backend), neighbour(ASIDE, ROUTER_MAC));
    let there = forwarded(&more, ASIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&more).leaves_by(ASIDE, &there.from(snat.as_str()));
}

/// Packets that may be fragmented are rejected, too: the data plane does not fragment, so the sender
/// must.
pub fn packets_too_large_for_an_interface_are_rejected(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    c.device(INSIDE, |device| device.mtu = 1400);
    let snat = open(c, &request(at), &backend, INSIDE);
    let data = request(at).psh_ack();
    let fits = of_length(&data, 1400);
    let there = forwarded(&fits, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&fits).leaves_by(INSIDE, &there.from(snat.as_str()));
    let mut too_long = vec![of_length(&data, 1401), of_length(&data, 1500)];
    if !at.is_v6() {
        too_long.push(of_length(&data, 1500).dont_fragment(false));
    }
    for too_long in &too_long {
        let error = sent_by_balancer(&packet_too_big(at.cluster_address(), too_long, 1400));
        c.forward(too_long).is_answered_by(&error, Reason::TooBig);
        c.stack(too_long).is_answered_by(&error, Reason::TooBig);
        c.forward(&too_long.vlan(100)).is_answered_by(&error.vlan(100), Reason::TooBig);
    }
}

pub fn packets_with_an_expired_hop_limit_are_rejected(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    let last = request(at).ack().ttl(2);
    let there = last.macs(mac(INSIDE), ROUTER_MAC).ttl(1);
    c.forward(&last).leaves_by(INSIDE, &there.to(backend.as_str()).from(snat.as_str()));
    for ttl in [1, 0] {
        let over = request(at).psh_ack().payload(b"far away").ttl(ttl);
        let error = sent_by_balancer(&time_exceeded(at.cluster_address(), &over));
        c.forward(&over).is_answered_by(&error, Reason::HopLimit);
        c.stack(&over).is_answered_by(&error, Reason::HopLimit);
    }
}

pub fn a_route_may_be_narrower_than_its_device(c: &mut Conversation, at: &Ends) {
    let backend = dns_behind(c, at, INSIDE);
    c.exit(&address(&backend), Exit { mtu: 1300, ..neighbour(INSIDE, ROUTER_MAC) });
    let question = at.to_dns(40000).ttl(64);
    let too_long = of_length(&question, 1301);
    let error = sent_by_balancer(&packet_too_big(at.cluster_address(), &too_long, 1300));
    c.forward(&too_long).is_answered_by(&error, Reason::TooBig);
    let fits = of_length(&question, 1300);
    let there = forwarded(&fits, INSIDE, ROUTER_MAC).to(backend.as_str());
    let _ = c.forward(&fits).leaves_with_snat_by(INSIDE, &there);
    // Also once the flow's next hop is known.
    c.forward(&too_long).is_answered_by(&error, Reason::TooBig);
    c.stack(&too_long).is_answered_by(&error, Reason::TooBig);
}

/// There must be no ICMP error about ICMP errors and later fragments that exceed the MTU.
pub fn packets_that_allow_no_error_are_dropped(c: &mut Conversation, at: &Ends) {
    let backend = dns_behind(c, at, INSIDE);
    let question = at.to_dns(40000).ttl(64).id(7).payload(&[7; 3000]);
    let [first, second] = [question.fragment(..1400), question.fragment(1400..2800)];
    let there = forwarded(&first, INSIDE, ROUTER_MAC).to(backend.as_str());
    let _ = c.forward(&first).leaves_with_snat_by(INSIDE, &there);
    c.device(INSIDE, |device| device.mtu = 500);
    let reply = at.to_dns(40000).reversed().payload(&[7; 600]);
    let error = port_unreachable(at.elsewhere, &reply).quoting_only(600).ttl(64);
    for sent in [&second, &error] {
        c.forward(sent).is_dropped_for(Reason::TooBig);
        c.stack(sent).is_dropped_for(Reason::TooBig);
    }
    c.forward(&error.ttl(1)).is_dropped_for(Reason::HopLimit);
}

/// Received segments may be merged (GRO) and segmented again (GSO): each segment must fit.
pub fn large_frames_fit_if_their_segments_fit(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    let data = request(at).psh_ack().payload(&[0x5a; 2800]);
    let there = forwarded(&data, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.stack_segments(&data, 1400).leaves_by(INSIDE, &there.from(snat.as_str()));
    let error = sent_by_balancer(&packet_too_big(at.cluster_address(), &data, 1500));
    c.stack_segments(&data, 1480).is_answered_by(&error, Reason::TooBig);
    c.stack(&data).is_answered_by(&error, Reason::TooBig);

    // The first packet of a flow must ask the kernel for the route.
    let question = at.to_dns(40000).ttl(64).payload(&[7; 2800]);
    c.set(&at.dns(0).remote_backends(&[&backend]));
    let there = forwarded(&question, INSIDE, ROUTER_MAC).to(backend.as_str());
    let _ = c.stack_segments(&question, 1400).leaves_with_snat_by(INSIDE, &there);
}

pub fn a_device_without_an_address_has_no_snat_address(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    c.device(INSIDE, |device| (device.v4, device.v6) = (None, None));
    let syn = request(at).syn();
    c.forward(&syn).is_dropped_for(Reason::NoSnatPort);
    c.stack(&syn).is_dropped_for(Reason::NoSnatPort);
    assert!(c.flows().is_empty());
    c.device(INSIDE, |_| {});
    open(c, &request(at), &backend, INSIDE);
}

/// The kernel may know an interface before the agent does: then the stack transmits the packet.
pub fn packets_for_an_unknown_interface_are_left_to_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    c.exit(&address(&backend), neighbour(UNKNOWN, ROUTER_MAC));
    let ack = request(at).ack();
    c.forward(&ack).is_deferred_for(&[]);
    let there = ack.to(backend.as_str()).from(snat.as_str()).ttl(63);
    c.stack(&ack).leaves_by(UNKNOWN, &there);
}
