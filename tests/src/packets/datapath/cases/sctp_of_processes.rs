//! SCTP of this node's own processes: translated where it leaves, or returned into the stack.

use lb_common::header::{Sctp, SctpChunk};
use lb_common::layout::{FlowState, Reason};

use super::Ends;
use super::next_hop::{ROUTER_MAC, address, forwarded, own_address};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{ASIDE, INSIDE, OUTSIDE, neighbour};
use crate::packets::{CLIENT_MAC, NODE_MAC, Packet, packet_too_big, port_unreachable, sctp, udp};

const COOKIE_ECHO: u8 = 10;

/// The node's address on the first device, by which its packets to the Service would leave.
fn process(at: &Ends) -> String {
    at.end(at.node, 40000)
}

/// The INIT of a process, in a frame to the router through which the Service's address would be.
fn init(at: &Ends) -> Packet {
    let packet = sctp(process(at).as_str(), at.cluster(3868).as_str()).verification_tag(7).ttl(64);
    packet.macs(NODE_MAC, CLIENT_MAC)
}

/// A Service with this backend, and the node's devices.
fn service_at(c: &mut Conversation, at: &Ends, local: Option<&str>) -> String {
    let devices = [OUTSIDE, INSIDE, ASIDE];
    devices.iter().for_each(|&index| c.device(index, |_| {}));
    let addresses = devices.map(|index| own_address(at, index));
    c.node_addresses(&addresses.each_ref().map(String::as_str));
    let remote = at.backends(1)[0].clone();
    let service = at.diameter(0);
    match local {
        Some(server) => c.set(&service.backends(&[server])),
        None => c.set(&service.remote_backends(&[&remote])),
    }
    local.map_or(remote, str::to_owned)
}

/// The packet as it enters the stack again: from the router to the node.
fn returned(packet: &Packet) -> Packet {
    packet.macs(CLIENT_MAC, NODE_MAC)
}

/// An association through a device; returns the SNAT address and port.
fn associate(c: &mut Conversation, at: &Ends, backend: &str, device: u32) -> String {
    let there = |packet: &Packet| forwarded(packet, device, ROUTER_MAC).to(backend);
    let snat = c.from_process(&init(at)).leaves_with_snat_by(device, &there(&init(at)));
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
    let reply = init(at).reversed().chunk(Sctp::INIT_ACK).macs(CLIENT_MAC, NODE_MAC);
    let arriving = reply.from(backend).to(snat.as_str());
    // Whether it arrives from outside, in XDP or tc, or from a pod.
    c.forward(&arriving).becomes(&reply);
    c.stack(&arriving).becomes(&reply);
    c.from_pod(&arriving).becomes(&reply);
    assert_eq!(c.flows().only_state(), FlowState::SynReceived);
    let echo = init(at).chunk(COOKIE_ECHO);
    c.from_process(&echo).leaves_by(device, &there(&echo).from(snat.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Established);
    snat
}

pub fn a_process_reaches_a_backend_behind_another_device(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let snat = associate(c, at, &backend, INSIDE);
    // The translated packet passes where it leaves.
    let there = init(at).to(backend.as_str()).from(snat.as_str());
    c.from_process(&there).passes();
    let data = init(at).payload(b"question");
    let there = forwarded(&data, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.from_process(&data).leaves_by(INSIDE, &there.from(snat.as_str()));
    let end = init(at).chunk(Sctp::ABORT);
    let there = forwarded(&end, INSIDE, ROUTER_MAC).to(backend.as_str());
    c.from_process(&end).leaves_by(INSIDE, &there.from(snat.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

pub fn a_process_reaches_a_backend_behind_the_same_device(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(OUTSIDE, ROUTER_MAC));
    let snat = associate(c, at, &backend, OUTSIDE);
    assert_eq!(address(&snat), at.node);
}

/// The server sees the frontend as its client: no packet from an address of the node could arrive.
pub fn a_process_reaches_a_server_of_its_own_node(c: &mut Conversation, at: &Ends) {
    let server = at.end(at.node, 8080);
    service_at(c, at, Some(&server));
    let request = init(at);
    let there = returned(&request.to(server.as_str()));
    let snat = c.from_process(&request).turns_back_with_snat_as(&there);
    assert_eq!(address(&snat), at.cluster_address());
    let reply = request.reversed().chunk(Sctp::INIT_ACK).macs(NODE_MAC, CLIENT_MAC);
    let leaving = reply.from(server.as_str()).to(snat.as_str());
    c.from_process(&leaving).turns_back_as(&returned(&reply));
    let echo = request.chunk(COOKIE_ECHO);
    c.from_process(&echo).turns_back_as(&returned(&echo).to(server.as_str()).from(snat.as_str()));
    assert_eq!(c.flows().only_state(), FlowState::Established);
    // An error of the stack, instead of the server's reply.
    let quoted = echo.to(server.as_str()).from(snat.as_str());
    let error = port_unreachable(at.node, &quoted).quoting_only(8).macs(NODE_MAC, CLIENT_MAC);
    let translated = error.inner(|_| echo.clone());
    c.from_process(&error)
        .turns_back_as(&returned(&translated.from(at.cluster_address()).to(at.node)));
    // Both pass where they arrive.
    c.forward(&returned(&echo).to(server.as_str()).from(snat.as_str()))
        .passes_for(Reason::NoFrontend);
    c.forward(&returned(&reply)).passes_for(Reason::NoFrontend);
}

/// What the node forwards from others, or from its own address for others, is not its processes'.
pub fn only_processes_of_this_node_are_served(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    // It has arrived on an interface, from whoever has taken the node's address.
    c.reverse(&init(at)).passes();
    // A container behind macvlan sends through the same device, from its own address.
    c.from_process(&init(at).from(at.client(40000).as_str())).passes();
    assert!(c.flows().is_empty());
}

/// From outside or a pod, with the address and port of a process.
pub fn a_forged_address_of_the_node_takes_no_association(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let forged = init(at).macs(CLIENT_MAC, NODE_MAC);
    // Before the process sends: the flow gives way.
    c.stack(&forged).assert_sent();
    associate(c, at, &backend, INSIDE);
    // Afterwards: the flow is not the sender's.
    for packet in [forged.chunk(Sctp::ABORT), forged.clone()] {
        c.forward(&packet).is_dropped_for(Reason::SourceNotAllowed);
        c.stack(&packet).is_dropped_for(Reason::SourceNotAllowed);
        c.from_pod(&packet).is_dropped_for(Reason::SourceNotAllowed);
    }
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

pub fn a_forged_reply_of_a_server_of_the_node_is_dropped(c: &mut Conversation, at: &Ends) {
    let server = at.end(at.node, 8080);
    service_at(c, at, Some(&server));
    let there = returned(&init(at).to(server.as_str()));
    let snat = c.from_process(&init(at)).turns_back_with_snat_as(&there);
    let reply = init(at).reversed().chunk(Sctp::INIT_ACK).macs(CLIENT_MAC, NODE_MAC);
    let forged = reply.from(server.as_str()).to(snat.as_str());
    c.forward(&forged).is_dropped_for(Reason::SourceNotAllowed);
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
}

/// More than a bucket's share: further flows are in other buckets.
pub fn one_port_of_a_process_reaches_many_services(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let ports: Vec<u16> = (4000..4012).collect();
    for &port in &ports {
        c.set(&at.service(port, "SCTP", 0).remote_backends(&[&backend]));
    }
    let sent = |port: u16, chunk: u8| init(at).to(at.cluster(port).as_str()).chunk(chunk);
    let there = |packet: &Packet| forwarded(packet, INSIDE, ROUTER_MAC).to(backend.as_str());
    let mut sources = Vec::new();
    for &port in &ports {
        let request = sent(port, Sctp::INIT);
        sources.push(c.from_process(&request).leaves_with_snat_by(INSIDE, &there(&request)));
    }
    for (&port, source) in ports.iter().zip(&sources) {
        let request = sent(port, COOKIE_ECHO);
        c.from_process(&request).leaves_by(INSIDE, &there(&request).from(source.as_str()));
    }
}

/// The kernel cuts a packet with several chunks where it leaves the machine.
pub fn packets_that_are_cut_by_chunks_fit(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let data = at.to_diameter(40000).ttl(64).payload(&[7; 3000]);
    let there = forwarded(&data, INSIDE, ROUTER_MAC).to(backend.as_str());
    let snat = c.stack_segments(&data, 0xffff).leaves_with_snat_by(INSIDE, &there);
    // Its chunks are not with its headers, where they could be read.
    let headers = |packet: &Packet| packet.truncated(packet.transport_offset() + size_of::<Sctp>());
    let there = headers(&there.from(snat.as_str()));
    c.stack_segments(&headers(&data), 0xffff).leaves_by(INSIDE, &there);
    c.stack_segments(&headers(&data), 0).passes_for(Reason::Malformed);
}

/// Whoever writes EndpointSlices can make packets of processes go from Service to Service only once.
pub fn a_backend_that_is_a_frontend_is_reached_once(c: &mut Conversation, at: &Ends) {
    service_at(c, at, None);
    let itself = at.cluster(3868);
    c.set(&at.diameter(0).remote_backends(&[&itself]));
    c.exit(at.cluster_address(), neighbour(OUTSIDE, ROUTER_MAC));
    let there = forwarded(&init(at), OUTSIDE, ROUTER_MAC);
    let snat = c.from_process(&init(at)).leaves_with_snat_by(OUTSIDE, &there);
    c.from_process(&there.from(snat.as_str())).passes();
}

pub fn other_packets_of_processes_pass(c: &mut Conversation, at: &Ends) {
    service_at(c, at, None);
    c.set(&at.dns(1));
    // Their sockets are translated.
    let question = udp(process(at).as_str(), at.cluster(53).as_str()).macs(NODE_MAC, CLIENT_MAC);
    c.from_process(&question).passes();
    c.from_process(&init(at).to(at.end(at.elsewhere, 3868).as_str())).passes();
    let whole = init(at).payload(&[7; 3000]);
    c.from_process(&whole.fragment(..1480)).passes_for(Reason::Fragment);
    c.from_process(&whole.fragment(1480..)).passes();
    let start = init(at).transport_offset();
    for length in start..start + size_of::<Sctp>() + size_of::<SctpChunk>() {
        c.from_process(&init(at).truncated(length)).passes();
    }
    assert!(c.flows().is_empty());
}

/// The ICMP error enters the stack, instead of leaving to the router.
pub fn a_process_without_a_backend_is_refused(c: &mut Conversation, at: &Ends) {
    service_at(c, at, None);
    c.set(&at.diameter(0));
    c.from_process(&init(at)).is_returned(&refusal(at, &init(at)), Reason::NoBackend);
    // A port that no Service has.
    let other = init(at).to(at.cluster(3869).as_str());
    c.from_process(&other).is_returned(&refusal(at, &other), Reason::NoSuchPort);
    assert!(c.flows().is_empty());
}

pub fn a_process_whose_backend_is_gone_is_refused(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    associate(c, at, &backend, INSIDE);
    c.set(&at.diameter(0));
    let data = init(at).payload(b"question");
    c.from_process(&data).is_returned(&refusal(at, &data), Reason::BackendGone);
    assert!(c.flows().is_empty());
}

pub fn a_process_sends_a_packet_that_is_too_big(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.device(INSIDE, |device| device.mtu = 1400);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    associate(c, at, &backend, INSIDE);
    // Not too big for the route, which may be asked again.
    let data = init(at).payload(&[7; 1400]);
    let error = packet_too_big(at.cluster_address(), &data, 1400).quoting_only(8);
    c.from_process(&data).is_returned(&error_to(&error), Reason::TooBig);
}

/// Another router's error about a translated packet.
pub fn a_hosts_route_errors_reach_the_process(c: &mut Conversation, at: &Ends) {
    let backend = service_at(c, at, None);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    let snat = associate(c, at, &backend, INSIDE);
    let data = init(at).payload(b"question");
    let there = data.to(backend.as_str()).from(snat.as_str());
    let error = packet_too_big(at.elsewhere, &there, 1400).quoting_only(8);
    let expected =
        error.inner(|quoted| quoted.to(at.cluster(3868).as_str()).from(process(at).as_str()));
    c.forward(&error).becomes(&expected.from(at.cluster_address()).to(at.node));
}

fn refusal(at: &Ends, packet: &Packet) -> Packet {
    error_to(&port_unreachable(at.cluster_address(), packet).quoting_only(8))
}

/// An error that the node makes for its own process.
fn error_to(error: &Packet) -> Packet {
    error.macs(CLIENT_MAC, NODE_MAC).ttl(64).id(0)
}
