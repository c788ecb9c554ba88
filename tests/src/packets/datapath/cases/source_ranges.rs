//! loadBalancerSourceRanges.

use lb_common::layout::Reason;

use super::Ends;
use crate::packets::datapath::Conversation;
use crate::packets::{Packet, tcp};

fn to_load_balancer(at: &Ends) -> Packet {
    tcp(at.client(40000).as_str(), at.load_balancer(80).as_str()).syn()
}

pub fn clients_outside_of_the_ranges_are_dropped(c: &mut Conversation, at: &Ends) {
    let web = at.web(1).load_balancer(&at.load_balancer(80));
    let backend = at.backends(1)[0].clone();
    let request = to_load_balancer(at);
    c.set(&web.clone().source_ranges(&["192.0.2.0/24", "2001:db8:99::/48"]));
    c.forward(&request).is_dropped_for(Reason::SourceNotAllowed);
    assert!(c.flows().is_empty());
    c.set(&web.clone().source_ranges(&["198.51.100.0/24", "2001:db8:51::/48"]));
    c.request_to(&backend, &request);
}

/// The ClusterIP is not restricted.
pub fn ranges_are_for_load_balancers_addresses_only(c: &mut Conversation, at: &Ends) {
    let web = at.web(1).load_balancer(&at.load_balancer(80));
    c.set(&web.source_ranges(&["192.0.2.0/24", "2001:db8:99::/48"]));
    let request = at.to_web(40000).syn();
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

pub fn a_range_of_length_zero_is_everybody(c: &mut Conversation, at: &Ends) {
    let web = at.web(1).load_balancer(&at.load_balancer(80));
    c.set(&web.source_ranges(&["0.0.0.0/0", "::/0"]));
    let request = to_load_balancer(at);
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

/// The ranges of one Service do not apply to another.
pub fn ranges_are_their_services_own(c: &mut Conversation, at: &Ends) {
    let other = at.service(81, "TCP", 1).load_balancer(&at.load_balancer(81));
    c.set(&other.source_ranges(&["198.51.100.0/24", "2001:db8:51::/48"]));
    let web = at.web(1).load_balancer(&at.load_balancer(80));
    c.set(&web.source_ranges(&["192.0.2.0/24", "2001:db8:99::/48"]));
    c.forward(&to_load_balancer(at)).is_dropped_for(Reason::SourceNotAllowed);
}

/// Pods reach the address without the external load balancer.
pub fn pods_are_held_to_the_ranges_too(c: &mut Conversation, at: &Ends) {
    let web = at.web(1).load_balancer(&at.load_balancer(80)).node_port(30080);
    c.node_addresses(&[at.node]);
    c.set(&web.clone().source_ranges(&["192.0.2.0/24", "2001:db8:99::/48"]));
    let request = to_load_balancer(at);
    c.from_pod(&request).is_dropped_for(Reason::SourceNotAllowed);
    for frontend in [at.cluster(80), at.end(at.node, 30080)] {
        let request = request.from(at.client(40001).as_str()).to(frontend.as_str());
        let _ = c.from_pod(&request).with_snat(&request.to(at.backends(1)[0].as_str()));
    }
    c.set(&web.source_ranges(&["198.51.100.0/24", "2001:db8:51::/48"]));
    c.from_pod(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}
