//! Frontends of every kind, and their removal and that of their backends.

use std::net::SocketAddr;

use lb_common::family::{V4, V6};
use lb_common::header::protocol::TCP;
use lb_common::layout::{FrontendKey, FrontendKind, Reason};
use lb_rules::model::Frontend;

use super::{Ends, establish};
use crate::packets::datapath::{Conversation, Service};
use crate::packets::{CLIENT_MAC, NODE_MAC, port_unreachable, tcp, udp};

fn external_ip(mut service: Service, end: &str) -> Service {
    let end: std::net::SocketAddr = end.parse().expect("an end of a case");
    let kind = FrontendKind::ExternalIp;
    service.port.frontends.insert(Frontend { address: end.ip(), port: end.port(), kind });
    service
}

pub fn datagrams_reach_every_kind_of_frontend(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    let dns = at.dns(1).load_balancer(&at.load_balancer(5353)).node_port(30053);
    c.set(&external_ip(dns, &at.end(at.elsewhere, 53)));
    let backend = &at.backends(1)[0];
    let frontends =
        [at.cluster(53), at.load_balancer(5353), at.end(at.node, 30053), at.end(at.elsewhere, 53)];
    for (port, frontend) in (40000..).zip(frontends) {
        let question = udp(at.client(port).as_str(), frontend.as_str()).payload(b"question");
        c.request_to(backend, &question);
        let reply = question.reversed().payload(b"answer");
        c.reply_from(backend, &reply);
    }
}

pub fn a_frontend_comes_before_a_node_port(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    let backends = at.backends(2);
    let on_node = at.end(at.node, 30080);
    c.set(&at.service(81, "TCP", 0).backends(&[&backends[1]]).node_port(30080));
    c.set(&external_ip(at.web(1), &on_node));
    let request = tcp(at.client(40000).as_str(), on_node.as_str()).syn();
    c.forward(&request).becomes(&request.to(backends[0].as_str()));
    c.set(&at.web(1));
    let request = tcp(at.client(40001).as_str(), on_node.as_str()).syn();
    c.forward(&request).becomes(&request.to(backends[1].as_str()));
}

pub fn the_nodes_other_ports_pass(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    c.set(&at.web(1).node_port(30080));
    let ssh = tcp(at.client(40000).as_str(), at.end(at.node, 22).as_str()).syn();
    c.forward(&ssh).passes_for(Reason::NoFrontend);
    let datagram = udp(at.client(40000).as_str(), at.end(at.node, 30080).as_str()).payload(b"?");
    c.forward(&datagram).passes_for(Reason::NoFrontend);
}

pub fn packets_to_a_removed_service_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    c.remove(&at.web(1));
    c.forward(&at.to_web(40000).syn()).passes();
    c.reverse(&at.to_web(40000).reversed().from(at.backends(1)[0].as_str())).passes();
}

/// As long as its backend serves another Service, and the address is in use.
pub fn a_connection_outlives_its_service(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    c.set(&at.web(1));
    c.set(&at.service(81, "TCP", 1));
    let request = at.to_web(40000);
    establish(c, &request, &backend);
    c.remove(&at.web(1));
    c.request_to(&backend, &request.ack());
    let refused = at.to_web(40001).seq(7).syn();
    let reset = refused.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.forward(&refused).is_answered_by(&reset, Reason::NoSuchPort);
}

/// A connection does not hang when its frontend no longer exists.
pub fn a_connection_outlives_its_address(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    let balanced = at.load_balancer(80);
    c.set(&at.web(1).load_balancer(&balanced));
    c.set(&at.service(81, "TCP", 1));
    let request = at.to_web(40000).to(balanced.as_str());
    establish(c, &request, &backend);
    c.remove(&at.web(1));
    c.request_to(&backend, &request.ack());
    // Its backend is removed, too: the client gets a reset.
    c.remove(&at.service(81, "TCP", 1));
    let more = request.ack().ack_number(5);
    let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
    c.forward(&more).is_answered_by(&reset, Reason::BackendGone);
    // Now nothing uses the address, and the next change removes it from the prefilter.
    c.set(&at.dns(1));
    c.remove(&at.dns(1));
    c.forward(&request.ack()).passes();
}

pub fn datagrams_end_with_their_service(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    c.set(&at.dns(1).load_balancer(&at.load_balancer(53)));
    c.set(&at.service(54, "UDP", 1));
    let question = at.to_dns(40000).to(at.load_balancer(53).as_str());
    c.request_to(&backend, &question);
    let to_other = at.to_dns(40001).to(at.cluster(54).as_str());
    c.request_to(&backend, &to_other);
    c.remove(&at.dns(1));
    c.forward(&question).passes();
    c.request_to(&backend, &to_other);
}

pub fn the_last_backend_takes_datagrams_along(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    c.set(&at.dns(1));
    let question = at.to_dns(40000);
    c.request_to(&backend, &question);
    c.set(&at.dns(0));
    let refusal = port_unreachable(at.cluster_address(), &question);
    let refusal = refusal.quoting_only(8).macs(NODE_MAC, CLIENT_MAC);
    c.forward(&question).is_answered_by(&refusal.ttl(64).id(0), Reason::NoBackend);
    assert!(c.flows().is_empty());
    c.set(&at.dns(1));
    c.request_to(&backend, &question);
}

pub fn a_backend_of_two_services_stays_for_the_other(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    let other = at.service(81, "TCP", 1);
    c.set(&at.web(1));
    c.set(&other);
    let to_other = at.to_web(40000).to(at.cluster(81).as_str());
    establish(c, &to_other, &backend);
    c.set(&at.web(0));
    c.request_to(&backend, &to_other.ack());
    let reply = to_other.reversed().ack();
    c.reply_from(&backend, &reply);
}

/// The connection neither hangs nor moves to a backend that does not know it.
pub fn a_connection_without_its_backend_is_reset(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(1));
    let request = at.to_web(40000);
    establish(c, &request, &backends[0]);
    c.set(&at.web(0).backends(&[&backends[1]]));
    let more = request.ack().ack_number(5);
    let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
    c.forward(&more).is_answered_by(&reset, Reason::BackendGone);
    assert!(c.flows().is_empty());
    // A new connection is served.
    c.forward(&request.syn()).becomes(&request.syn().to(backends[1].as_str()));
}

pub fn a_cluster_ip_keeps_to_the_internal_policy(c: &mut Conversation, at: &Ends) {
    let backend = &at.backends(1)[0];
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)).external_local());
    let request = at.to_web(40000).syn();
    c.request_to(backend, &request);
}

/// A port whose frontend has the same position in the cache as that of port 80.
fn port_at_the_same_position(at: &Ends) -> u16 {
    let index = |port| match at.cluster(port).parse().expect("an end of a case") {
        SocketAddr::V4(end) => FrontendKey::<V4>::new((*end.ip()).into(), port, TCP).cache_index(),
        SocketAddr::V6(end) => FrontendKey::<V6>::new((*end.ip()).into(), port, TCP).cache_index(),
    };
    (81..=u16::MAX).find(|&port| index(port) == index(80)).expect("there are more ports")
}

/// One is in the cache, and the other in the hash table only.
pub fn frontends_at_the_same_position_of_the_cache_are_not_confused(
    c: &mut Conversation,
    at: &Ends,
) {
    let port = port_at_the_same_position(at);
    let backends = at.backends(3);
    let service = |number: usize, port| at.service(port, "TCP", 0).backends(&[&backends[number]]);
    let mut client = 40000..;
    let mut reaches = |c: &mut Conversation, port, number: usize| {
        let client = at.client(client.next().expect("there are more ports"));
        let request = tcp(client.as_str(), at.cluster(port).as_str()).syn();
        c.request_to(&backends[number], &request);
    };
    c.set(&service(0, 80));
    c.set(&service(1, port));
    reaches(c, 80, 0);
    reaches(c, port, 1);
    // A change of either, and the position's next owner.
    c.set(&service(2, 80));
    c.set(&service(0, port));
    reaches(c, 80, 2);
    reaches(c, port, 0);
    c.remove(&service(2, 80));
    reaches(c, port, 0);
    c.set(&service(1, port));
    reaches(c, port, 1);
    c.set(&service(0, 80));
    reaches(c, 80, 0);
    reaches(c, port, 1);
}
