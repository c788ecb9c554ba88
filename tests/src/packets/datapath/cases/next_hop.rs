//! Packets that the data plane transmits: egress interface and next hop. All packets arrive through the first
//! interface.

use lb_common::header::Sctp;
use lb_common::layout::{DeviceCacheEntry, FlowState, Reason};

use super::Ends;
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{
    ASIDE, INSIDE, OUTSIDE, device, mac, neighbour, unknown_neighbour,
};
use crate::packets::{CLIENT_MAC, Mac, NODE_MAC, Packet, packet_too_big, tcp};

/// The address of the next hop to the backends.
pub const ROUTER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);

pub fn address(end: &str) -> String {
    let end: std::net::SocketAddr = end.parse().expect("an end of a case");
    end.ip().to_string()
}

/// A Service whose only backend is on another node, to which there is no route yet.
pub fn service_elsewhere(c: &mut Conversation, at: &Ends) -> String {
    let devices = [OUTSIDE, INSIDE, ASIDE];
    devices.iter().for_each(|&index| c.device(index, |_| {}));
    let addresses = devices.map(|index| own_address(at, index));
    c.node_addresses(&addresses.each_ref().map(String::as_str));
    let backend = at.backends(1)[0].clone();
    c.set(&at.web(0).remote_backends(&[&backend]));
    c.exit(&address(&at.client(0)), neighbour(OUTSIDE, CLIENT_MAC));
    backend
}

/// A Service whose backend has a route through this interface.
pub fn service_behind(c: &mut Conversation, at: &Ends, device: u32) -> String {
    let backend = service_elsewhere(c, at);
    c.exit(&address(&backend), neighbour(device, ROUTER_MAC));
    backend
}

/// This node's address on an interface.
pub fn own_address(at: &Ends, index: u32) -> String {
    let device = device(index);
    let address = if at.is_v6() { device.v6.map(Into::into) } else { device.v4.map(Into::into) };
    let address: std::net::IpAddr = address.expect("devices have both");
    address.to_string()
}

/// The packet when it is transmitted through an interface to a neighbour.
pub fn forwarded(packet: &Packet, device: u32, neighbour: Mac) -> Packet {
    packet.macs(mac(device), neighbour).ttl(63)
}

/// Opens a connection through an interface; returns the SNAT address and port.
pub fn open(c: &mut Conversation, request: &Packet, backend: &str, device: u32) -> String {
    let there = forwarded(&request.syn(), device, ROUTER_MAC).to(backend);
    let snat = c.forward(&request.syn()).leaves_with_snat_by(device, &there);
    let reply = request.reversed().syn_ack();
    let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
    c.forward(&reply.from(backend).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    let there = forwarded(&request.ack(), device, ROUTER_MAC).to(backend);
    c.forward(&request.ack()).leaves_by(device, &there.from(snat.as_str()));
    snat
}

/// A client's SYN, and the SYN-ACK with which the backend of an earlier connection accepts it.
/// Returns the states after the SYN-ACK, and after the client's reply.
fn open_again(
    c: &mut Conversation,
    request: &Packet,
    [backend, snat]: [&str; 2],
    sequence: u32,
) -> [FlowState; 2] {
    let syn = request.syn().seq(sequence);
    let there = forwarded(&syn, INSIDE, ROUTER_MAC).to(backend);
    c.forward(&syn).leaves_by(INSIDE, &there.from(snat));
    let reply = request.reversed().syn_ack().seq(2_000_000_000);
    let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
    c.forward(&reply.from(backend).to(snat)).leaves_by(OUTSIDE, &back);
    let accepted = c.flows().only_state();
    let ack = request.ack().seq(sequence.wrapping_add(1)).ack_number(2_000_000_001);
    let there = forwarded(&ack, INSIDE, ROUTER_MAC).to(backend);
    c.forward(&ack).leaves_by(INSIDE, &there.from(snat));
    [accepted, c.flows().only_state()]
}

/// The backend has closed, and the client is gone without a word. Behind an address translator, the
/// next connection may have the same port.
pub fn a_client_that_is_gone_uses_the_port_of_a_half_closed_connection_again(
    c: &mut Conversation,
    at: &Ends,
) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    let end = request(at).reversed().fin_ack();
    let back = forwarded(&end, OUTSIDE, CLIENT_MAC);
    c.forward(&end.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    assert_eq!(c.flows().only_state(), FlowState::FinFromBackend);
    // A repeated SYN-ACK of the old connection changes nothing.
    let repeated = request(at).reversed().syn_ack();
    let back = forwarded(&repeated, OUTSIDE, CLIENT_MAC);
    c.forward(&repeated.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    assert_eq!(c.flows().only_state(), FlowState::FinFromBackend);
    // The SYN-ACK may be forged, so it changes nothing about the entry.
    let states = open_again(c, &request(at), [&backend, &snat], 7 << 20);
    assert_eq!(states, [FlowState::FinFromBackend; 2]);
}

/// Both have closed, and the next SYN looks older.
pub fn a_client_begins_again_with_an_older_sequence_number(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    let end = request(at).fin_ack();
    let there = forwarded(&end, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&end).leaves_by(INSIDE, &there.from(snat.as_str()));
    let end = request(at).reversed().fin_ack();
    let back = forwarded(&end, OUTSIDE, CLIENT_MAC);
    c.forward(&end.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    let states = open_again(c, &request(at), [&backend, &snat], 0u32.wrapping_sub(1 << 20));
    assert_eq!(states, [FlowState::SynReceived, FlowState::Established]);
}

pub fn request(at: &Ends) -> Packet {
    at.to_web(40000).ttl(64)
}

pub fn a_request_leaves_to_the_next_hop_and_its_reply_to_the_client(
    c: &mut Conversation,
    at: &Ends,
) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    assert_eq!(address(&snat), own_address(at, INSIDE));
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

pub fn packets_may_leave_through_the_interface_on_which_they_arrived(
    c: &mut Conversation,
    at: &Ends,
) {
    let backend = service_behind(c, at, OUTSIDE);
    let snat = open(c, &request(at), &backend, OUTSIDE);
    assert_eq!(address(&snat), own_address(at, OUTSIDE));
}

pub fn tc_does_the_same(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let syn = request(at).syn();
    let there = forwarded(&syn, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.stack(&syn).leaves_with_snat_by(INSIDE, &there);
    let reply = request(at).reversed().syn_ack();
    let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
    c.stack(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
}

pub fn an_unknown_neighbour_is_left_to_the_stack(c: &mut Conversation, at: &Ends) {
    let backend = service_elsewhere(c, at);
    c.exit(&address(&backend), unknown_neighbour(INSIDE));
    let syn = request(at).syn();
    c.forward(&syn).is_deferred_for(&[Reason::NoNeighbour]);
    assert!(c.flows().is_empty(), "tc will open it");
    // The stack writes the link-layer header.
    let snat = c.stack(&syn).leaves_with_snat_by(INSIDE, &syn.to(backend.as_str()).ttl(63));
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let ack = request(at).ack();
    let there = forwarded(&ack, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&ack).leaves_by(INSIDE, &there.from(snat.as_str()));
    // The neighbour entry is removed during the connection.
    c.exit(&address(&backend), unknown_neighbour(INSIDE));
    c.forward(&ack).is_deferred_for(&[Reason::NoNeighbour]);
    let there = ack.to(backend.as_str()).from(snat.as_str()).ttl(63);
    c.stack(&ack).leaves_by(INSIDE, &there);
}

/// XDP handles the next packets before tc has handled the deferred one.
pub fn fragments_of_what_opens_a_flow_in_tc_are_left_to_it(c: &mut Conversation, at: &Ends) {
    let backend = dns_behind(c, at, INSIDE);
    c.exit(&address(&backend), unknown_neighbour(INSIDE));
    let question = at.to_dns(40000).ttl(64).payload(&[7; 2000]);
    let (first, second) = (question.fragment(..1400), question.fragment(1400..));
    c.forward(&first).is_deferred_for(&[Reason::NoNeighbour]);
    c.forward(&second).is_deferred_for(&[]);
    let there = |piece: &Packet| piece.to(backend.as_str()).ttl(63);
    let snat = c.stack(&first).leaves_with_snat_by(INSIDE, &there(&first));
    c.stack(&second).leaves_by(INSIDE, &there(&second).from(snat.as_str()));
}

pub fn packets_that_xdp_cannot_transmit_are_left_to_tc(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    c.device(INSIDE, |device| device.redirect = false);
    let syn = request(at).syn();
    c.forward(&syn).is_deferred_for(&[]);
    let there = forwarded(&syn, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.stack(&syn).leaves_with_snat_by(INSIDE, &there);
    c.device(OUTSIDE, |device| device.transmit = false);
    let reply = request(at).reversed().syn_ack();
    let from_backend = reply.from(backend.as_str()).to(snat.as_str());
    c.forward(&from_backend).is_deferred_for(&[]);
    c.stack(&from_backend).leaves_by(OUTSIDE, &forwarded(&reply, OUTSIDE, CLIENT_MAC));
    c.device(INSIDE, |_| {});
    let ack = request(at).ack();
    let there = forwarded(&ack, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&ack).leaves_by(INSIDE, &there.from(snat.as_str()));
}

/// Another interface is in other networks, and has its own tags.
pub fn tags_leave_by_their_own_device_only(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, OUTSIDE);
    for (port, tagged) in [(40001, request(at).vlan(100)), (40002, request(at).qinq(200, 100))] {
        let tagged = tagged.from(at.client(port).as_str());
        open(c, &tagged, &backend, OUTSIDE);
    }
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    c.forward(&request(at).vlan(100).syn()).is_deferred_for(&[]);
}

pub fn options_and_headers_leave_as_they_came(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let request = request(at);
    let request = if at.is_v6() {
        request.hop_by_hop().destination_options()
    } else {
        request.ip_options(&[1; 12])
    };
    open(c, &request, &backend, INSIDE);
}

pub fn a_flow_follows_a_changed_route(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    for (device, router) in [(ASIDE, ROUTER_MAC), (OUTSIDE, NODE_MAC), (INSIDE, ROUTER_MAC)] {
        c.exit(&address(&backend), neighbour(device, router));
        let ack = request(at).ack();
        let there = forwarded(&ack, device, router).to(backend.as_str()).from(snat.as_str());
        c.forward(&ack).leaves_by(device, &there);
        c.forward(&ack).leaves_by(device, &there);
    }
    // Replies, too.
    c.exit(&address(&at.client(0)), neighbour(ASIDE, ROUTER_MAC));
    let reply = request(at).reversed().ack();
    let back = forwarded(&reply, ASIDE, ROUTER_MAC);
    c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(ASIDE, &back);
}

pub fn a_flow_follows_a_changed_neighbour(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let snat = open(c, &request(at), &backend, INSIDE);
    let other = Mac([0x02, 0, 0, 0, 0, 0xef]);
    c.exit(&address(&backend), neighbour(INSIDE, other));
    let ack = request(at).ack();
    let there = forwarded(&ack, INSIDE, other).to(backend.as_str()).from(snat.as_str());
    c.forward(&ack).leaves_by(INSIDE, &there);
}

/// With the SNAT address and the same port, the backend could not distinguish them.
pub fn clients_with_the_same_port_are_distinguished(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    c.exit(at.elsewhere, neighbour(OUTSIDE, NODE_MAC));
    let one = request(at);
    let other = tcp(at.end(at.elsewhere, 40000).as_str(), at.cluster(80).as_str()).ttl(64);
    let snat_ports = [(&one, CLIENT_MAC), (&other, NODE_MAC)].map(|(request, back)| {
        let there = forwarded(&request.syn(), INSIDE, ROUTER_MAC).to(backend.as_str());
        (request, back, c.forward(&request.syn()).leaves_with_snat_by(INSIDE, &there))
    });
    assert_ne!(snat_ports[0].2, snat_ports[1].2);
    for (request, mac_of_client, snat) in snat_ports {
        let reply = request.reversed().syn_ack();
        let back = forwarded(&reply, OUTSIDE, mac_of_client);
        c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    }
}

pub fn ends_are_used_again_soon_after_closing(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    for _ in 0..3 {
        let snat = open(c, &request(at), &backend, INSIDE);
        let end = request(at).fin_ack();
        let there = forwarded(&end, INSIDE, ROUTER_MAC).to(backend.as_str());
        c.forward(&end).leaves_by(INSIDE, &there.from(snat.as_str()));
        let reply = request(at).reversed().fin_ack();
        let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
        c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
        assert_eq!(c.flows().only_state(), FlowState::TimeWait);
    }
}

pub fn flows_of_two_frontends_share_a_backend_elsewhere(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let web = at.web(0).load_balancer(&at.load_balancer(443));
    c.set(&web.remote_backends(&[&backend]));
    let one = open(c, &request(at), &backend, INSIDE);
    let other = request(at).to(at.load_balancer(443).as_str());
    let other = open(c, &other, &backend, INSIDE);
    assert_ne!(one, other);
}

/// A UDP Service whose only backend is reached through an interface.
pub fn dns_behind(c: &mut Conversation, at: &Ends, device: u32) -> String {
    let backend = service_behind(c, at, device);
    c.set(&at.dns(0).remote_backends(&[&backend]));
    backend
}

pub fn datagrams_leave_too(c: &mut Conversation, at: &Ends) {
    let backend = dns_behind(c, at, INSIDE);
    let question = at.to_dns(40000).ttl(64);
    let there = forwarded(&question, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.forward(&question).leaves_with_snat_by(INSIDE, &there);
    let reply = question.reversed().payload(b"answer");
    let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
    c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
    c.forward(&question).leaves_by(INSIDE, &there.from(snat.as_str()));
}

pub fn associations_leave_too(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    c.set(&at.diameter(0).remote_backends(&[&backend]));
    let init = at.to_diameter(40000).ttl(64);
    let there = forwarded(&init, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.forward(&init).leaves_with_snat_by(INSIDE, &there);
    let reply = init.reversed().chunk(Sctp::INIT_ACK);
    let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
    c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
}

pub fn fragments_leave_where_the_first_one_went(c: &mut Conversation, at: &Ends) {
    let backend = dns_behind(c, at, INSIDE);
    let question = at.to_dns(40000).ttl(64).id(7).payload(&[7; 3000]);
    let pieces = |whole: &Packet| {
        [whole.fragment(..1400), whole.fragment(1400..2800), whole.fragment(2800..)]
    };
    let [first, second, third] = pieces(&question);
    let there = |piece: &Packet| forwarded(piece, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.forward(&first).leaves_with_snat_by(INSIDE, &there(&first));
    let snat_address = address(&snat);
    for piece in [&second, &third] {
        c.forward(piece).leaves_by(INSIDE, &there(piece).from(snat_address.as_str()));
    }
    for piece in pieces(&question.reversed().id(8)) {
        let back = forwarded(&piece, OUTSIDE, CLIENT_MAC);
        let from_backend = piece.from(backend.as_str()).to(snat.as_str());
        c.forward(&from_backend).leaves_by(OUTSIDE, &back);
    }
    // There must be no error about a later fragment.
    c.forward(&second.ttl(1)).is_dropped_for(Reason::HopLimit);
}

/// An error from any router quotes the packet as its sender sent it.
pub fn errors_are_forwarded_to_the_sender_of_the_quoted_packet(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let request = request(at);
    let snat = open(c, &request, &backend, INSIDE);
    let sent = request.psh_ack().payload(&[7; 1400]);
    let error = packet_too_big(at.elsewhere, &sent.to(backend.as_str()).from(snat.as_str()), 1300);
    let error = error.quoting_only(500).ttl(64);
    let to_client = error
        .inner(|quoted| quoted.from(at.client(40000).as_str()).to(at.cluster(80).as_str()))
        .from(at.cluster_address())
        .to(address(&at.client(0)).as_str());
    c.forward(&error).leaves_by(OUTSIDE, &forwarded(&to_client, OUTSIDE, CLIENT_MAC));

    let reply = request.reversed().psh_ack().payload(&[7; 1400]);
    let error = packet_too_big(at.elsewhere, &reply, 1300).quoting_only(500).ttl(64);
    let to_backend = error
        .inner(|quoted| quoted.from(backend.as_str()).to(snat.as_str()))
        .from(address(&snat).as_str())
        .to(address(&backend).as_str());
    c.forward(&error).leaves_by(INSIDE, &forwarded(&to_backend, INSIDE, ROUTER_MAC));
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

/// The backend's node replies to the pod directly.
pub fn a_pods_packets_go_up_the_stack_as_its_own(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let syn = request(at).syn();
    c.from_pod(&syn).becomes(&syn.to(backend.as_str()));
    let reply = request(at).reversed().syn_ack();
    c.reply_from(&backend, &reply);
}

pub fn a_pod_reaches_itself_under_an_address_of_the_node(c: &mut Conversation, at: &Ends) {
    let pod_mac = Mac([0x02, 0, 0, 0, 0, 0xdd]);
    let pod = service_elsewhere(c, at);
    c.set(&at.web(1));
    c.exit(&address(&pod), neighbour(INSIDE, pod_mac));
    let own = at.end(&address(&pod), 40000);
    let request = request(at).from(own.as_str());
    let there = forwarded(&request.syn(), INSIDE, pod_mac).to(pod.as_str());
    let snat = c.from_pod(&request.syn()).leaves_with_snat_by(INSIDE, &there);
    assert_eq!(address(&snat), own_address(at, INSIDE));
    let reply = request.reversed().syn_ack();
    let back = forwarded(&reply, INSIDE, pod_mac);
    c.from_pod(&reply.from(pod.as_str()).to(snat.as_str())).leaves_by(INSIDE, &back);
}

/// The reply index is a separate table: evictions from it must not break connections.
pub fn connections_with_snat_are_not_evicted_by_a_flood(c: &mut Conversation, at: &Ends) {
    let backend = service_behind(c, at, INSIDE);
    let from = |port: u16| request(at).from(at.client(port).as_str());
    let established: Vec<(Packet, String)> =
        (0..12).map(|n| (from(40000 + n), open(c, &from(40000 + n), &backend, INSIDE))).collect();
    for port in 0..200 {
        let _ = c.forward(&from(50000 + port).syn());
    }
    for (request, snat) in &established {
        let reply = request.reversed().psh_ack().payload(b"answer");
        let back = forwarded(&reply, OUTSIDE, CLIENT_MAC);
        c.forward(&reply.from(backend.as_str()).to(snat.as_str())).leaves_by(OUTSIDE, &back);
        let there = forwarded(&request.ack(), INSIDE, ROUTER_MAC).to(backend.as_str());
        c.forward(&request.ack()).leaves_by(INSIDE, &there.from(snat.as_str()));
    }
}

/// One is in the cache, and the other in the hash table only.
pub fn interfaces_at_the_same_position_of_the_cache_are_not_confused(
    c: &mut Conversation,
    at: &Ends,
) {
    let other = INSIDE + DeviceCacheEntry::COUNT;
    c.device(other, |device| device.mac = [2, 0, 0, 0, 0, 0xff]);
    let backend = service_behind(c, at, INSIDE);
    open(c, &request(at), &backend, INSIDE);
    // The entry in the hash table changes, too.
    c.device(INSIDE, |device| device.redirect = false);
    c.forward(&request(at).ack()).is_deferred_for(&[]);
}
