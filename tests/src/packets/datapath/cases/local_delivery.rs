//! Packets between clients and pods of this node that bypass the stack (`--local-delivery direct`).
//! All packets arrive through the first interface, also those of pods. Clients are behind [`ASIDE`].

use lb_common::host::Exit;

use super::Ends;
use super::next_hop::{address, forwarded};
use super::undeliverable::of_length;
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{
    ASIDE, INSIDE, OUTSIDE, UNKNOWN, mac, neighbour, unknown_neighbour,
};
use crate::packets::{CLIENT_MAC, Mac, NODE_MAC, Packet, port_unreachable};

const POD_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xdd]);

/// A Service with a backend on this node behind a pod's interface; returns the backend.
pub fn service_here(c: &mut Conversation, at: &Ends) -> String {
    [OUTSIDE, INSIDE].iter().for_each(|&pod| c.device(pod, |device| device.pod = true));
    c.device(ASIDE, |_| {});
    c.set(&at.web(1));
    c.set(&at.dns(1));
    let backend = at.backends(1)[0].clone();
    c.exit(&address(&backend), neighbour(INSIDE, POD_MAC));
    c.exit(&address(&at.client(0)), neighbour(ASIDE, CLIENT_MAC));
    backend
}

fn delivered(packet: &Packet) -> Packet {
    forwarded(packet, INSIDE, POD_MAC)
}

/// A reply as it comes from the pod, and as it leaves to the client.
fn reply(packet: &Packet, backend: &str) -> [Packet; 2] {
    let from_pod = packet.macs(POD_MAC, NODE_MAC);
    [from_pod.from(backend), forwarded(&from_pod, ASIDE, CLIENT_MAC)]
}

fn request(at: &Ends) -> Packet {
    at.to_web(40000).ttl(64)
}

pub fn requests_are_delivered_and_replies_sent(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    for packet in [request(at).syn(), request(at).ack(), at.to_dns(40001).ttl(64)] {
        c.stack(&packet).leaves_by(INSIDE, &delivered(&packet).to(backend.as_str()));
        let answer = packet.reversed();
        let answer = if packet == request(at).syn() { answer.syn_ack() } else { answer };
        let [from_pod, to_client] = reply(&answer, &backend);
        c.from_pod(&from_pod).leaves_by(ASIDE, &to_client);
    }
    assert_eq!(c.flows().len(), 2);
}

/// XDP does not check whether they can be delivered.
pub fn xdp_leaves_delivery_to_tc(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let syn = request(at).syn();
    c.forward(&syn).is_left_to_tc_as(&syn.to(backend.as_str()));
    c.no_exit(&address(&backend));
    let ack = request(at).ack();
    c.forward(&ack).is_left_to_tc_as(&ack.to(backend.as_str()));
}

/// As without direct delivery.
pub fn what_cannot_be_delivered_goes_up_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let data = request(at).psh_ack();
    let passes = |c: &mut Conversation, packet: &Packet| {
        c.stack(packet).becomes(&packet.to(backend.as_str()));
    };
    for exit in [neighbour(ASIDE, POD_MAC), neighbour(UNKNOWN, POD_MAC), unknown_neighbour(ASIDE)] {
        c.exit(&address(&backend), exit);
        passes(c, &data);
    }
    c.exit(&address(&backend), Exit { mtu: 1400, ..neighbour(INSIDE, POD_MAC) });
    passes(c, &of_length(&data, 1500));
    c.no_exit(&address(&backend));
    passes(c, &data);
    c.exit(&address(&backend), neighbour(INSIDE, POD_MAC));
    c.device(INSIDE, |device| (device.pod, device.mtu) = (true, 1400));
    passes(c, &of_length(&data, 1500));
    passes(c, &data.ttl(1));
    passes(c, &data.vlan(100));
    passes(c, &data.macs(CLIENT_MAC, Mac([0xff; 6])));
    // The address of an interface above.
    passes(c, &data.macs(NODE_MAC, CLIENT_MAC));
    c.stack(&data).leaves_by(INSIDE, &delivered(&data).to(backend.as_str()));
}

pub fn merged_segments_are_delivered_if_each_fits(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let merged = request(at).psh_ack().payload(&[0x5a; 3000]);
    let there = delivered(&merged).to(backend.as_str());
    c.stack_segments(&merged, 1400).leaves_by(INSIDE, &there);
    c.stack_segments(&merged, 1500).becomes(&merged.to(backend.as_str()));
}

/// Then the program at egress translates them.
pub fn replies_that_cannot_be_sent_go_up_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let client = address(&at.client(0));
    c.stack(&request(at).syn()).assert_sent();
    let data = request(at).reversed().psh_ack();
    let passes = |c: &mut Conversation, packet: &Packet| {
        let [from_pod, _] = reply(packet, &backend);
        c.from_pod(&from_pod).passes();
        c.reverse(&from_pod).becomes(&packet.macs(POD_MAC, NODE_MAC));
    };
    for exit in [neighbour(UNKNOWN, CLIENT_MAC), unknown_neighbour(UNKNOWN)] {
        c.exit(&client, exit);
        passes(c, &data);
    }
    c.exit(&client, Exit { mtu: 1400, ..neighbour(ASIDE, CLIENT_MAC) });
    passes(c, &of_length(&data, 1500));
    c.no_exit(&client);
    passes(c, &data);
    c.exit(&client, neighbour(ASIDE, CLIENT_MAC));
    passes(c, &data.ttl(1));
    passes(c, &data.vlan(100));
    // Its requests pass the stack, too.
    c.device(OUTSIDE, |_| {});
    passes(c, &data);
    c.device(OUTSIDE, |device| device.pod = true);
    c.device(ASIDE, |device| device.mac = [0; 6]);
    passes(c, &data);
    c.device(ASIDE, |_| {});
    let [from_pod, to_client] = reply(&data.ttl(64), &backend);
    c.from_pod(&from_pod).leaves_by(ASIDE, &to_client);
}

pub fn the_stack_resolves_unknown_pods_and_clients(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    c.exit(&address(&backend), unknown_neighbour(INSIDE));
    let syn = request(at).syn();
    let there = forwarded(&syn, INSIDE, Mac([0; 6])).to(backend.as_str());
    c.stack(&syn).leaves_by(INSIDE, &there);
    c.exit(&address(&at.client(0)), unknown_neighbour(ASIDE));
    let [from_pod, to_client] = reply(&request(at).reversed().syn_ack(), &backend);
    let unresolved = to_client.macs(mac(ASIDE), Mac([0; 6]));
    c.from_pod(&from_pod).leaves_by(ASIDE, &unresolved);
}

/// Every packet asks the routing tables.
pub fn a_pod_with_a_new_interface_gets_its_packets_there(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let data = request(at).psh_ack();
    let other = Mac([0x02, 0, 0, 0, 0, 0xde]);
    for (device, neighbour_mac) in [(INSIDE, POD_MAC), (ASIDE, other), (INSIDE, other)] {
        c.device(ASIDE, |it| it.pod = true);
        c.exit(&address(&backend), neighbour(device, neighbour_mac));
        let there = forwarded(&data, device, neighbour_mac).to(backend.as_str());
        c.stack(&data).leaves_by(device, &there);
    }
}

pub fn pods_reach_each_other_directly(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let syn = request(at).syn().macs(CLIENT_MAC, NODE_MAC);
    c.from_pod(&syn).leaves_by(INSIDE, &delivered(&syn).to(backend.as_str()));
    // The client's interface is a pod's, too.
    c.device(ASIDE, |device| device.pod = true);
    let [from_pod, to_client] = reply(&request(at).reversed().syn_ack(), &backend);
    c.from_pod(&from_pod).leaves_by(ASIDE, &to_client);
}

pub fn backends_elsewhere_are_reached_by_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    c.set(&at.web(0).remote_backends(&[&backend]));
    let syn = request(at).syn().macs(CLIENT_MAC, NODE_MAC);
    c.from_pod(&syn).becomes(&syn.to(backend.as_str()));
}

/// A host that reassembles fragments on the way must see all of them.
pub fn fragments_and_errors_go_up_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    let question = at.to_dns(40000).ttl(64).payload(&[7; 2000]);
    for piece in [question.fragment(..1400), question.fragment(1400..)] {
        c.stack(&piece).becomes(&piece.to(backend.as_str()));
    }
    let answer = question.reversed();
    for piece in [answer.fragment(..1400), answer.fragment(1400..)] {
        let piece = piece.macs(POD_MAC, NODE_MAC);
        c.from_pod(&piece.from(backend.as_str())).passes();
        c.reverse(&piece.from(backend.as_str())).becomes(&piece);
    }
    let received = question.payload(b"question").to(backend.as_str());
    let error = port_unreachable(address(&backend).as_str(), &received).macs(POD_MAC, NODE_MAC);
    c.from_pod(&error).passes();
}

pub fn other_packets_of_pods_pass(c: &mut Conversation, at: &Ends) {
    let backend = service_here(c, at);
    // A backend that connects to its client, and one that replies to no Service's request.
    let [from_pod, _] = reply(&request(at).reversed().syn(), &backend);
    c.from_pod(&from_pod).passes();
    let [answer, _] = reply(&request(at).reversed().ack(), &backend);
    c.from_pod(&answer).passes();
    // A backend is a client of another Service.
    c.set(&at.service(81, "TCP", 1));
    let other = request(at).to(at.cluster(81).as_str()).from(backend.as_str()).syn();
    c.from_pod(&other).assert_sent();
}
