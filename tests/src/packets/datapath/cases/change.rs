//! Changes of Services while clients keep sending from the same ports.

use lb_common::layout::Reason;

use super::{Ends, establish};
use crate::packets::datapath::Conversation;
use crate::packets::{CLIENT_MAC, NODE_MAC, Packet, port_unreachable, tcp, udp};

/// The ICMP error for a port without a backend.
fn refusal(at: &Ends, packet: &Packet) -> Packet {
    let refusal = port_unreachable(at.cluster_address(), packet);
    refusal.quoting_only(8).macs(NODE_MAC, CLIENT_MAC).ttl(64).id(0)
}

/// Packets that passed or were refused leave no flow.
pub fn a_client_that_was_refused_is_served_at_once(c: &mut Conversation, at: &Ends) {
    let backend = at.backends(1)[0].clone();
    let question = at.to_dns(40000);
    for _ in 0..2 {
        c.forward(&question).passes();
        c.set(&at.dns(0));
        for _ in 0..3 {
            c.forward(&question).is_answered_by(&refusal(at, &question), Reason::NoBackend);
        }
        c.set(&at.dns(1));
        c.request_to(&backend, &question);
        let reply = question.reversed().payload(b"answer");
        c.reply_from(&backend, &reply);
        c.remove(&at.dns(1));
    }
}

/// The address is the same, but nothing serves the old port any more.
pub fn a_changed_target_port_takes_datagrams_along(c: &mut Conversation, at: &Ends) {
    let old = at.backends(1)[0].clone();
    let new = old.replace("8080", "9090");
    c.set(&at.dns(0).backends(&[&old]));
    c.set(&at.web(0).backends(&[&old]));
    let (question, request) = (at.to_dns(40000), at.to_web(40000));
    c.request_to(&old, &question);
    establish(c, &request, &old);

    c.set(&at.dns(0).backends(&[&new]));
    c.set(&at.web(0).backends(&[&new]));
    c.request_to(&new, &question);
    let reply = question.reversed().payload(b"answer");
    c.reply_from(&new, &reply);
    let more = request.ack().ack_number(5);
    let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
    c.forward(&more).is_answered_by(&reset, Reason::BackendGone);
    c.request_to(&new, &request.syn());
}

/// Its old Service stays, with the backends that it had.
pub fn datagrams_follow_an_address_that_moves_to_another_service(c: &mut Conversation, at: &Ends) {
    let [old, new] = [0, 1].map(|number| at.backends(2)[number].clone());
    let address = at.load_balancer(53);
    let question = udp(at.client(40000).as_str(), address.as_str()).payload(b"question");
    c.set(&at.dns(1).load_balancer(&address));
    c.request_to(&old, &question);
    c.request_to(&old, &at.to_dns(40001));
    c.set(&at.dns(1));
    c.set(&at.service(54, "UDP", 0).backends(&[&new]).load_balancer(&address));
    c.request_to(&new, &question);
    // Those to its other addresses stay.
    c.set(&at.dns(2));
    c.request_to(&old, &at.to_dns(40001));
}

/// Pods are replaced one by one; each is terminating before it is removed.
pub fn a_rolling_update_under_policy_local_breaks_no_connection(c: &mut Conversation, at: &Ends) {
    let [old, new] = [0, 1].map(|number| at.backends(2)[number].clone());
    let web = || {
        let mut web = at.web(0).load_balancer(&at.load_balancer(80)).external_local();
        web.port.populated = true;
        web
    };
    let request = |port| tcp(at.client(port).as_str(), at.load_balancer(80).as_str());
    let goes_on = |c: &mut Conversation, port, backend: &str| {
        let (more, reply) = (request(port).psh_ack(), request(port).reversed().ack());
        c.forward(&more.payload(b"more")).becomes(&more.payload(b"more").to(backend));
        c.reverse(&reply.from(backend)).becomes(&reply);
    };
    c.set(&web().local_backends(&[&old]));
    establish(c, &request(40000), &old);
    // The new pod is ready; then the old one terminates.
    c.set(&web().local_backends(&[&old, &new]));
    c.set(&web().local_backends(&[&new]).draining(&[&old]));
    establish(c, &request(40001), &new);
    goes_on(c, 40000, &old);
    // For a moment no backend serves on this node. Others do, so the client must not get an error.
    c.set(&web().draining(&[&old, &new]));
    c.forward(&request(40002).syn()).is_dropped_for(Reason::NoLocalBackend);
    goes_on(c, 40000, &old);
    goes_on(c, 40001, &new);
    c.set(&web().local_backends(&[&old]).draining(&[&new]));
    establish(c, &request(40002), &old);
    goes_on(c, 40001, &new);
}
