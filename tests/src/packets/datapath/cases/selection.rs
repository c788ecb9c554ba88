//! Selection of a backend for a new flow.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::Reason;
use lb_rules::model::TrafficPolicy;

use super::Ends;
use crate::packets::datapath::{Conversation, service};
use crate::packets::{CLIENT_MAC, NODE_MAC, port_unreachable, tcp, udp};

/// The backend of a client's SYN.
fn chosen(c: &mut Conversation, at: &Ends, client_port: u16, backends: u16) -> String {
    let backends = at.backends(backends);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let request = at.to_web(client_port).syn();
    c.forward(&request).chosen(&backends, |backend| request.to(backend)).to_owned()
}

pub fn a_connection_stays_with_its_backend(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(10));
    let first = chosen(c, at, 40000, 10);
    let request = at.to_web(40000);
    c.reply_from(&first, &request.reversed().syn_ack());
    assert_eq!(chosen(c, at, 40000, 10), first, "a SYN sent again");
    c.request_to(&first, &request.ack());
}

pub fn connections_spread_over_all_backends(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(3));
    let seen: BTreeSet<String> = (40000..40060).map(|port| chosen(c, at, port, 3)).collect();
    assert_eq!(seen.len(), 3);
}

pub fn all_frontends_of_a_service_port_lead_to_its_backends(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    c.set(&at.web(1).load_balancer(&at.load_balancer(443)).node_port(30080));
    let backend = &at.backends(1)[0];
    let frontends = [at.cluster(80), at.load_balancer(443), at.end(at.node, 30080)];
    for (frontend, port) in frontends.iter().zip(40000..) {
        let request = tcp(at.client(port).as_str(), frontend.as_str()).syn();
        c.request_to(backend, &request);
        let reply = request.reversed().syn_ack();
        c.reply_from(backend, &reply);
    }
}

pub fn a_node_port_is_open_on_the_nodes_addresses_only(c: &mut Conversation, at: &Ends) {
    c.node_addresses(&[at.node]);
    c.set(&at.web(1).node_port(30080));
    let to = |address: &str| tcp(at.client(40000).as_str(), at.end(address, 30080).as_str()).syn();
    let request = to(at.node);
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
    c.forward(&to(at.elsewhere)).passes();

    c.node_addresses(&[at.elsewhere]);
    let request = tcp(at.client(40001).as_str(), at.end(at.elsewhere, 30080).as_str()).syn();
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
    // The connection to the removed address may continue.
    let request = tcp(at.client(40001).as_str(), at.end(at.node, 30080).as_str()).syn();
    c.forward(&request).passes_for(Reason::NoFrontend);
}

pub fn without_backends_connections_are_reset(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(0));
    let refused = at.to_web(40000).seq(7).syn();
    let reset = refused.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.forward(&refused).is_answered_by(&reset, Reason::NoBackend);
    let refused = at.to_web(40000).seq(7).ack_number(99).psh_ack().payload(b"more");
    let reset = refused.reversed().rst().payload(b"").seq(99).ack_number(0);
    c.forward(&refused).is_answered_by(&reset.window(0).ttl(64).id(0), Reason::NoBackend);
    c.forward(&at.to_web(40000).rst()).is_dropped_for(Reason::NoBackend);
    assert!(c.flows().is_empty());
    c.set(&at.web(1));
    let request = at.to_web(40000).syn();
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

pub fn policy_local_wants_a_local_backend(c: &mut Conversation, at: &Ends) {
    let web = at.web(2).load_balancer(&at.load_balancer(80)).external_local();
    c.set(&web);
    let request = tcp(at.client(40000).as_str(), at.load_balancer(80).as_str()).syn();
    c.forward(&request).is_dropped_for(Reason::NoLocalBackend);
    c.set(&web.local_backends(&[&at.backends(2)[1]]));
    c.forward(&request).becomes(&request.to(at.backends(2)[1].as_str()));
}

/// The client is not refused: other nodes have backends, and this node may get one.
pub fn policy_local_drops_packets_while_only_other_nodes_serve(c: &mut Conversation, at: &Ends) {
    let mut web = at.web(0);
    web.port.internal_policy = TrafficPolicy::Local;
    web.port.populated = true;
    c.set(&web);
    c.from_pod(&at.to_web(40000).syn()).is_dropped_for(Reason::NoLocalBackend);
    web.port.populated = false;
    c.set(&web);
    let refused = at.to_web(40000).seq(7).syn();
    let reset = refused.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.from_pod(&refused).is_answered_by(&reset, Reason::NoBackend);
}

pub fn another_port_of_a_cluster_address_is_refused(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = tcp(at.client(40000).as_str(), at.cluster(81).as_str()).seq(7).syn();
    let reset = request.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.forward(&request).is_answered_by(&reset, Reason::NoSuchPort);
    c.from_pod(&request).is_answered_by(&reset, Reason::NoSuchPort);
    // As if the Service had never existed.
    c.remove(&at.web(1));
    c.forward(&request).passes();
}

/// Other software may listen there: the address belongs to the network.
pub fn another_port_of_an_external_address_passes(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)));
    let request = tcp(at.client(40000).as_str(), at.load_balancer(81).as_str()).syn();
    c.forward(&request).passes_for(Reason::NoFrontend);
}

pub fn another_protocol_on_a_frontends_port_is_refused(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = udp(at.client(40000).as_str(), at.cluster(80).as_str()).payload(b"?");
    let refusal = port_unreachable(at.cluster_address(), &request);
    let refusal = refusal.quoting_only(8).macs(NODE_MAC, CLIENT_MAC);
    c.forward(&request).is_answered_by(&refusal.ttl(64).id(0), Reason::NoSuchPort);
    // If the Service has the port number for UDP, too, it has other backends.
    c.set(&service(&format!("{}/UDP", at.cluster(80))).backends(&[&at.backends(2)[1]]));
    c.forward(&request).becomes(&request.to(at.backends(2)[1].as_str()));
}

/// As if its packets had left the cluster and returned through any node.
pub fn a_pod_is_not_held_to_the_external_policy(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1).load_balancer(&at.load_balancer(80)).external_local());
    let request = tcp(at.client(40000).as_str(), at.load_balancer(80).as_str()).syn();
    c.forward(&request).is_dropped_for(Reason::NoLocalBackend);
    c.from_pod(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

/// With random selection a backend would get 100, with a standard deviation of 10.
pub fn backends_get_even_shares(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(10));
    let mut shares: BTreeMap<String, u32> = BTreeMap::new();
    for port in 40000..41000 {
        *shares.entry(chosen(c, at, port, 10)).or_default() += 1;
    }
    assert_eq!(shares.len(), 10);
    assert!(shares.values().all(|share| (70..=130).contains(share)), "{shares:?}");
}

/// A named target port may have different numbers in different pods.
pub fn backends_have_ports_of_their_own(c: &mut Conversation, at: &Ends) {
    let [one, other] = [0, 1].map(|number| at.backends(2)[number].clone());
    let other = other.replace("8080", "9090");
    c.set(&at.web(0).backends(&[&one, &other]));
    let mut seen = BTreeSet::new();
    for port in 40000..40016 {
        let request = at.to_web(port).syn();
        let there = [one.as_str(), other.as_str()];
        let backend = c.forward(&request).chosen(&there, |backend| request.to(backend));
        let reply = request.reversed().syn_ack();
        c.reverse(&reply.from(backend)).becomes(&reply);
        seen.insert(backend);
    }
    assert_eq!(seen.len(), 2);
}

pub fn the_internal_policy_keeps_pods_on_their_node(c: &mut Conversation, at: &Ends) {
    let here = at.backends(5)[3].clone();
    let mut web = at.web(5).load_balancer(&at.load_balancer(80)).local_backends(&[&here]);
    web.port.internal_policy = TrafficPolicy::Local;
    c.set(&web);
    for port in 40000..40010 {
        let request = at.to_web(port).syn();
        c.from_pod(&request).becomes(&request.to(here.as_str()));
    }
    // Other frontends have their own policy.
    let mut elsewhere = BTreeSet::new();
    let backends = at.backends(5);
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    for port in 41000..41010 {
        let request = tcp(at.client(port).as_str(), at.load_balancer(80).as_str()).syn();
        elsewhere.insert(c.from_pod(&request).chosen(&backends, |end| request.to(end)));
    }
    assert!(elsewhere.len() > 1, "{elsewhere:?}");
}
