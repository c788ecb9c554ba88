//! New flows that use the next hop of earlier ones to the same backend.

use lb_common::host::Exit;
use lb_common::layout::Reason;

use super::Ends;
use super::next_hop::{ROUTER_MAC, address, dns_behind, forwarded, open, service_behind};
use super::undeliverable::{of_length, sent_by_balancer};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::surroundings::{ASIDE, INSIDE, neighbour};
use crate::packets::{Packet, packet_too_big};

/// Whether the routing tables were asked does not show: sharing changes no result.
pub fn new_flows_share_the_next_hop_to_their_backend(c: &mut Conversation, at: &Ends) {
    c.share_hops(true);
    let backend = service_behind(c, at, INSIDE);
    let request = |port| at.to_web(port).ttl(64);
    for port in 40000..40003 {
        open(c, &request(port), &backend, INSIDE);
    }
    // It is invalid after changes of the network.
    c.exit(&address(&backend), neighbour(ASIDE, ROUTER_MAC));
    open(c, &request(40003), &backend, ASIDE);
    open(c, &request(40004), &backend, ASIDE);
    c.share_hops(false);
    c.exit(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    open(c, &request(40005), &backend, INSIDE);
}

pub fn a_packet_too_large_for_a_shared_next_hop_is_rejected(c: &mut Conversation, at: &Ends) {
    c.share_hops(true);
    let backend = dns_behind(c, at, INSIDE);
    let question = |port| at.to_dns(port).ttl(64);
    let there = forwarded(&question(40000), INSIDE, ROUTER_MAC).to(backend.as_str());
    c.forward(&question(40000)).leaves_with_snat_by(INSIDE, &there);
    let large = of_length(&question(40001), 1501);
    let error = sent_by_balancer(&packet_too_big(at.cluster_address(), &large, 1500));
    c.forward(&large).is_answered_by(&error, Reason::TooBig);
}

/// A connection begins with short packets.
pub fn connections_do_not_exceed_a_route_narrower_than_its_device(c: &mut Conversation, at: &Ends) {
    c.share_hops(true);
    let backend = service_behind(c, at, INSIDE);
    c.exit(&address(&backend), Exit { mtu: 1300, ..neighbour(INSIDE, ROUTER_MAC) });
    for port in 40000..40002 {
        let request = at.to_web(port).ttl(64);
        let snat = open(c, &request, &backend, INSIDE);
        let too_long = of_length(&request.psh_ack(), 1301);
        let error = sent_by_balancer(&packet_too_big(at.cluster_address(), &too_long, 1300));
        c.forward(&too_long).is_answered_by(&error, Reason::TooBig);
        c.stack(&too_long).is_answered_by(&error, Reason::TooBig);
        let fits = of_length(&request.psh_ack(), 1300);
        let there = forwarded(&fits, INSIDE, ROUTER_MAC).to(backend.as_str());
        c.forward(&fits).leaves_by(INSIDE, &there.from(snat.as_str()));
    }
}

/// What happens to the network between two agents must not cut off established connections.
pub fn flows_follow_the_network_while_no_agent_runs(c: &mut Conversation, at: &Ends) {
    c.share_hops(false);
    let backend = service_behind(c, at, INSIDE);
    let request = at.to_web(40000).ttl(64);
    let snat = open(c, &request, &backend, INSIDE);
    let expect = |c: &mut Conversation, device| {
        let there = forwarded(&request.ack(), device, ROUTER_MAC).to(backend.as_str());
        c.forward(&request.ack()).leaves_by(device, &there.from(snat.as_str()));
    };
    c.end_epoch_lease();
    expect(c, INSIDE);
    c.exit_unreported(&address(&backend), neighbour(ASIDE, ROUTER_MAC));
    c.outlast_unleased_hops();
    expect(c, ASIDE);
    // The next agent does not know what has changed.
    c.exit_unreported(&address(&backend), neighbour(INSIDE, ROUTER_MAC));
    c.share_hops(false);
    expect(c, INSIDE);
}

/// A route may have a smaller MTU than its interface, which only a lookup knows. On the host only: the
/// route changes without a new epoch, so that it shows which packets are looked up.
pub fn a_long_packet_does_not_use_a_shared_next_hop(c: &mut Conversation, at: &Ends) {
    c.share_hops(true);
    let backend = dns_behind(c, at, INSIDE);
    let question = |port| at.to_dns(port).ttl(64);
    let expect = |c: &mut Conversation, sent: &Packet, device| {
        let there = forwarded(sent, device, ROUTER_MAC).to(backend.as_str());
        let _ = c.forward(sent).leaves_with_snat_by(device, &there);
    };
    expect(c, &question(40000), INSIDE);
    let epoch = c.host_tables().epoch.get();
    c.exit(&address(&backend), neighbour(ASIDE, ROUTER_MAC));
    c.host_tables().epoch.set(epoch);
    let longest = if at.is_v6() { 1280 } else { 576 };
    expect(c, &of_length(&question(40001), longest), INSIDE);
    expect(c, &of_length(&question(40002), longest + 1), ASIDE);
}
