//! Addresses that Millrace assigned to load balancers behave like those of a host: for packets that no port of
//! a Service takes.

use lb_common::header::GUE;
use lb_common::layout::{Forwarding, Reason};

use super::tunnels::{KINDS, address, arriving, receive};
use super::{Ends, establish};
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE};
use crate::packets::datapath::tunnel::through;
use crate::packets::datapath::{Conversation, Hook, Service};
use crate::packets::{
    CLIENT_MAC, Mac, NODE_MAC, Packet, icmp, icmp_echo, icmp_echo_reply, icmp_unreachable, ip,
    port_unreachable, sctp, tcp, udp,
};

/// Where packets of clients arrive: in XDP, in tc, and from a pod.
const HOOKS: [Hook; 3] = [Hook::Forward, Hook::Stack, Hook::Workload];

fn balanced(at: &Ends) -> String {
    address(&at.load_balancer(80))
}

/// A Service with an assigned address, and with a NodePort.
fn web(at: &Ends) -> Service {
    at.web(1).load_balancer(&at.load_balancer(80)).node_port(30080).assigned()
}

/// A request of a client for an echo.
fn request(at: &Ends) -> Packet {
    let client = address(&at.client(1));
    icmp_echo(client.as_str(), balanced(at).as_str()).echo(7, 9).payload(b"abcdefg").ttl(9)
}

fn reply(request: &Packet, at: &Ends) -> Packet {
    let client = address(&at.client(1));
    let payload = &request[request.transport_offset() + 8..];
    let reply = icmp_echo_reply(balanced(at).as_str(), client.as_str()).echo(7, 9).payload(payload);
    reply.macs(NODE_MAC, CLIENT_MAC).ttl(64).tos(request.traffic_class())
}

fn syn(at: &Ends, port: u16) -> Packet {
    tcp(at.client(40000).as_str(), at.load_balancer(port).as_str()).seq(7).syn()
}

fn reset(syn: &Packet) -> Packet {
    syn.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0)
}

/// One of each kind.
pub fn answered_packets(c: &mut Conversation, at: &Ends) -> [Packet; 2] {
    c.set(&web(at));
    [request(at), syn(at, 81)]
}

pub fn an_echo_request_is_answered(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    for hook in HOOKS {
        let request = request(at);
        c.run(hook, &request).is_replaced_by(&reply(&request, at));
        for length in [0, 1, 56, 1400] {
            let request = request.payload(&vec![0xa5; length]).tos(0x28).ttl(1);
            c.run(hook, &request).is_replaced_by(&reply(&request, at));
        }
    }
    let tagged = request(at).vlan(7);
    c.forward(&tagged).is_replaced_by(&reply(&request(at), at).vlan(7));
    assert!(c.flows().is_empty());
}

/// Neither a NodePort nor a server of the node gets what is sent there.
pub fn a_port_that_no_service_has_is_refused(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    c.set(&web(at));
    for hook in HOOKS {
        for port in [22, 81, 30080] {
            c.run(hook, &syn(at, port)).is_answered_by(&reset(&syn(at, port)), Reason::NoSuchPort);
        }
        let (from, to) = (at.client(40000), at.load_balancer(80));
        let client = (from.as_str(), to.as_str());
        let refused = [
            udp(client.0, client.1).payload(b"question"),
            udp(client.0, at.load_balancer(GUE).as_str()).payload(b"question"),
            sctp(client.0, client.1).verification_tag(7),
        ];
        for packet in refused {
            let refusal = port_unreachable(balanced(at).as_str(), &packet).quoting_only(8);
            let refusal = refusal.macs(NODE_MAC, CLIENT_MAC).ttl(64).id(0);
            c.run(hook, &packet).is_answered_by(&refusal, Reason::NoSuchPort);
        }
    }
    assert!(c.flows().is_empty());
}

pub fn ports_of_services_are_served_as_before(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    let request = at.to_web(40000).to(at.load_balancer(80).as_str());
    establish(c, &request, &at.backends(1)[0]);
    // A Service without an endpoint refuses for its own reason.
    c.set(&web(at).backends(&[]));
    let refused = syn(at, 80).from(at.client(40001).as_str());
    c.forward(&refused).is_answered_by(&reset(&refused), Reason::NoBackend);
}

/// The stack would route it to where it came from.
pub fn what_gets_no_answer_is_dropped(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    let (client, service) = (address(&at.client(1)), balanced(at));
    let (client, service) = (client.as_str(), service.as_str());
    let request = request(at);
    let (echo, timestamp) = if at.is_v6() { (128, 139) } else { (8, 13) };
    let with_options = if at.is_v6() { request.hop_by_hop() } else { request.ip_options(&[1; 4]) };
    let quoted = tcp(at.load_balancer(99).as_str(), at.client(40000).as_str()).ack();
    let to_elsewhere = tcp(at.client(40000).as_str(), at.end(at.elsewhere, 80).as_str()).syn();
    let dropped = [
        ip(client, service, 47).payload(b"tunnel"),
        icmp_echo_reply(client, service),
        icmp(client, service, timestamp, 0).payload(&[0; 12]),
        icmp(client, service, echo, 1),
        request.truncated(request.len() - 1),
        with_options,
        icmp_unreachable(at.elsewhere, &quoted, 1).to(service),
        through(Forwarding::Ipip, client, service, &to_elsewhere),
        syn(at, 81).truncated(14 + if at.is_v6() { 40 } else { 20 } + 8),
    ];
    for hook in HOOKS {
        for packet in &dropped {
            c.run(hook, packet).is_dropped_for(Reason::Unserved);
        }
    }
    let whole = request.payload(&[7; 2000]).id(3);
    for piece in [whole.fragment(..1400), whole.fragment(1400..)] {
        c.stack(&piece).is_dropped_for(Reason::Unserved);
    }
    assert!(c.flows().is_empty());
}

/// Nor do two hosts go on for ever, or all nodes answer one frame.
pub fn nothing_is_sent_to_groups(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    let balanced = balanced(at);
    let sources: &[&str] = if at.is_v6() {
        &["::", "ff02::1", &balanced]
    } else {
        &["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", &balanced]
    };
    for source in sources {
        c.stack(&request(at).from(*source)).is_dropped_for(Reason::Unserved);
        let from = at.end(source, 40000);
        c.stack(&syn(at, 81).from(from.as_str())).is_dropped_for(Reason::Unserved);
    }
    for group in [Mac([0xff; 6]), Mac([0x01, 0, 0x5e, 0, 0, 1])] {
        c.forward(&request(at).macs(group, NODE_MAC)).is_dropped_for(Reason::Unserved);
        c.forward(&syn(at, 81).macs(group, NODE_MAC)).is_dropped_for(Reason::Unserved);
        c.forward(&request(at).macs(CLIENT_MAC, group)).is_dropped_for(Reason::Unserved);
        c.forward(&syn(at, 81).macs(CLIENT_MAC, group)).is_dropped_for(Reason::Unserved);
    }
}

/// Another machine may have them, with more ports than its Services.
pub fn addresses_that_others_assigned_are_left_alone(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    c.forward(&request(at)).passes_for(Reason::UnknownProtocol);
    c.forward(&syn(at, 81)).passes_for(Reason::NoFrontend);
    // Now it is assigned.
    c.set(&web(at));
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.remove(&web(at));
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    c.forward(&request(at)).passes_for(Reason::UnknownProtocol);
}

/// Whatever a status says.
pub fn addresses_of_nodes_are_left_to_them(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    let balanced = balanced(at);
    let leave = |c: &mut Conversation| {
        c.forward(&request(at)).passes_for(Reason::UnknownProtocol);
        c.forward(&syn(at, 22)).passes_for(Reason::NoFrontend);
    };
    c.node_addresses(&[&balanced]);
    leave(c);
    c.node_addresses(&[]);
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.peers(&[at.elsewhere, &balanced]);
    leave(c);
    c.peers(&[at.elsewhere]);
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.own_addresses(&[&balanced]);
    leave(c);
}

/// Only a node with an endpoint has the address. Pods reach it everywhere.
pub fn with_policy_local_other_nodes_are_silent(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    let local = web(at).external_local();
    c.set(&local);
    for hook in [Hook::Forward, Hook::Stack] {
        c.run(hook, &request(at)).is_dropped_for(Reason::NoLocalBackend);
        c.run(hook, &syn(at, 81)).is_dropped_for(Reason::NoLocalBackend);
    }
    c.from_pod(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.from_pod(&syn(at, 81)).is_answered_by(&reset(&syn(at, 81)), Reason::NoSuchPort);
    c.set(&local.clone().local_backends(&[&backend]));
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.forward(&syn(at, 81)).is_answered_by(&reset(&syn(at, 81)), Reason::NoSuchPort);
    c.set(&local);
    c.forward(&request(at)).is_dropped_for(Reason::NoLocalBackend);
}

/// The ranges of a Service are those of its address, if no other Service shares it.
pub fn source_ranges_decide_who_is_answered(c: &mut Conversation, at: &Ends) {
    let (theirs, others) = (
        ["198.51.100.0/24", "2001:db8:51::/48"].as_slice(),
        ["192.0.2.0/24", "2001:db8:99::/48"].as_slice(),
    );
    let denied = |c: &mut Conversation, reason| {
        for hook in HOOKS {
            c.run(hook, &request(at)).is_dropped_for(reason);
            c.run(hook, &syn(at, 81)).is_dropped_for(reason);
        }
    };
    c.set(&web(at).source_ranges(others));
    denied(c, Reason::SourceNotAllowed);
    c.set(&web(at).source_ranges(theirs));
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    // Another Service shares the address: with other ranges, and without.
    let shares = at.service(82, "TCP", 1).load_balancer(&at.load_balancer(82)).assigned();
    c.set(&shares.clone().source_ranges(others));
    denied(c, Reason::Unserved);
    c.set(&shares);
    c.set(&web(at).source_ranges(others));
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
}

/// As long as any Service has it.
pub fn an_address_belongs_to_all_services_that_share_it(c: &mut Conversation, at: &Ends) {
    let shares = at.service(82, "TCP", 1).load_balancer(&at.load_balancer(82)).assigned();
    c.set(&web(at));
    c.set(&shares);
    c.remove(&web(at));
    c.forward(&syn(at, 80)).is_answered_by(&reset(&syn(at, 80)), Reason::NoSuchPort);
    c.forward(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.remove(&shares);
    // The next change removes the address from the prefilter.
    c.set(&at.dns(1));
    c.forward(&request(at)).passes();
}

/// XDP may not be able to send there.
pub fn tc_answers_if_xdp_cannot(c: &mut Conversation, at: &Ends) {
    c.set(&web(at));
    c.device(OUTSIDE, |device| device.transmit = false);
    c.forward(&request(at)).is_deferred_for(&[]);
    c.forward(&syn(at, 81)).is_deferred_for(&[]);
    c.stack(&request(at)).is_replaced_by(&reply(&request(at), at));
    c.stack(&syn(at, 81)).is_answered_by(&reset(&syn(at, 81)), Reason::NoSuchPort);
}

/// Tunnels carry only what a Service takes. Outside of one the stack would route the packet back out.
pub fn a_tunnel_brings_no_packet_to_another_port(c: &mut Conversation, at: &Ends) {
    for (kind, _) in KINDS {
        let backend = receive(c, at, kind, 1).remove(0);
        c.set(&at.web(1).load_balancer(&at.load_balancer(80)).forwarding(kind).assigned());
        let tunnel = arriving(at, kind, &syn(at, 81), &backend);
        c.forward(&tunnel).is_dropped_for(Reason::NoSuchPort);
    }
}

/// What a node with tunnels gets from clients is answered there, and never sent to an endpoint's node.
pub fn with_tunnels_the_first_node_answers(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    c.device(INSIDE, |_| {});
    c.node_addresses(&[at.node]);
    c.peers(&[at.elsewhere]);
    for (kind, _) in KINDS {
        let service = at.web(1).load_balancer(&at.load_balancer(80)).forwarding(kind);
        c.set(&service.remote_backends(&[&backend]).on_node(at.elsewhere).assigned());
        for hook in [Hook::Forward, Hook::Stack] {
            c.run(hook, &request(at)).is_replaced_by(&reply(&request(at), at));
            c.run(hook, &syn(at, 81)).is_answered_by(&reset(&syn(at, 81)), Reason::NoSuchPort);
        }
    }
}
