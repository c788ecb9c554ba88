//! Connections that an endpoint refuses or does not reply to: the client's repeated SYN reaches another one.

use lb_common::layout::{FlowKind, FlowState, Reason};

use super::next_hop::{ROUTER_MAC, address, forwarded, own_address};
use super::tunnels::{arriving, receive};
use super::{Ends, establish};
use crate::packets::datapath::Conversation;
use crate::packets::datapath::processed::{Processed, ends};
use crate::packets::datapath::surroundings::{ASIDE, INSIDE, OUTSIDE, neighbour};
use crate::packets::{CLIENT_MAC, Packet, tcp};

/// The client's first sequence number.
const FIRST: u32 = 70_000;

fn syn(at: &Ends, port: u16) -> Packet {
    at.to_web(port).syn().seq(FIRST)
}

/// The reset that refuses the SYN, as its client would see it.
fn refusal(syn: &Packet) -> Packet {
    syn.reversed().rst_ack().seq(0).ack_number(FIRST + 1).window(0)
}

/// What makes the client repeat its SYN.
fn unacknowledged(syn: &Packet) -> Packet {
    refusal(syn).ack().ack_number(FIRST - 1)
}

fn syn_ack(syn: &Packet) -> Packet {
    syn.reversed().syn_ack().seq(0).ack_number(FIRST + 1)
}

/// The backend accepts the only connection.
fn accept(c: &mut Conversation, syn: &Packet, backend: &str) {
    c.reply_from(backend, &syn_ack(syn));
    c.request_to(backend, &syn.ack().seq(FIRST + 1).ack_number(1));
    assert_eq!(c.flows().only_state(), FlowState::Established);
}

/// The client's reset of what it did not expect.
fn client_reset(syn: &Packet) -> Packet {
    syn.rst().seq(FIRST - 1)
}

/// Sends a SYN that opens a flow to one of the backends; returns that one.
fn dial<'a>(c: &mut Conversation, backends: &'a [String], syn: &Packet) -> &'a str {
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    c.forward(syn).chosen(&backends, |backend| syn.to(backend))
}

/// Repeats a SYN whose backend has refused it, or does not reply: XDP leaves it to tc.
fn repeat(c: &mut Conversation, syn: &Packet) -> Processed {
    c.forward(syn).is_deferred_for(&[]);
    c.stack(syn)
}

/// Repeats a SYN, which reaches one of the backends; returns that one.
fn redial<'a>(c: &mut Conversation, backends: &'a [String], syn: &Packet) -> &'a str {
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    repeat(c, syn).chosen(&backends, |backend| syn.to(backend))
}

/// The backend refuses the connection, and the client does not learn it.
fn refuse(c: &mut Conversation, syn: &Packet, backend: &str) {
    c.reverse(&refusal(syn).from(backend)).becomes(&unacknowledged(syn));
}

/// The client sees that the backend refuses the connection.
fn refuse_openly(c: &mut Conversation, syn: &Packet, backend: &str) {
    c.reply_from(backend, &refusal(syn));
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

pub fn a_refused_connection_is_opened_with_another_endpoint(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let syn = syn(at, 40000);
    let first = dial(c, &backends, &syn);
    refuse(c, &syn, first);
    // No endpoint takes the client's reset for one of a connection.
    c.request_to(first, &client_reset(&syn));
    let other = backends.iter().find(|backend| *backend != first).expect("two backends");
    repeat(c, &syn).becomes_for(&syn.to(other.as_str()), Reason::Moved);
    c.request_to(other, &client_reset(&syn));
    accept(c, &syn, other);
}

pub fn a_syn_without_a_reply_moves_when_it_is_repeated(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let syn = syn(at, 40000);
    let first = dial(c, &backends, &syn);
    c.wait(1);
    let other = backends.iter().find(|backend| *backend != first).expect("two backends");
    repeat(c, &syn).becomes_for(&syn.to(other.as_str()), Reason::Moved);
    // The first endpoint's reply is late.
    let late = syn_ack(&syn).from(first);
    c.reverse(&late).passes_for(Reason::NoFlow);
    accept(c, &syn, other);
}

pub fn a_reply_keeps_the_connection_where_it_is(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let syn = syn(at, 40000);
    let first = dial(c, &backends, &syn);
    c.reply_from(first, &syn_ack(&syn));
    c.wait(2);
    c.request_to(first, &syn);
    // A reset after the endpoint has accepted the connection is the client's.
    c.reply_from(first, &refusal(&syn));
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

pub fn an_established_connection_is_never_moved(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let request = at.to_web(40000).seq(FIRST);
    let backend = &at.backends(1)[0];
    establish(c, &request, backend);
    c.set(&at.web(2));
    c.wait(2);
    c.request_to(backend, &request.syn());
    c.reply_from(backend, &request.reversed().rst_ack().ack_number(FIRST + 1));
    assert_eq!(c.flows().only_state(), FlowState::Reset);
}

/// A blind sender does not know the number, and what has sent data has more to acknowledge.
pub fn only_an_exact_refusal_counts(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let others: [fn(&Packet) -> Packet; 4] = [
        |refusal| refusal.ack_number(FIRST),
        |refusal| refusal.ack_number(FIRST + 2),
        |refusal| refusal.ack_number(0),
        |refusal| refusal.rst(),
    ];
    for (port, change) in (40000..).zip(others) {
        let syn = syn(at, port);
        let first = dial(c, &backends, &syn).to_owned();
        c.reply_from(&first, &change(&refusal(&syn)));
        assert_eq!(c.flows().state_of(port), FlowState::Reset);
    }
}

pub fn the_only_endpoint_refuses_openly(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(1);
    c.set(&at.web(1));
    let syn = syn(at, 40000);
    let only = dial(c, &backends, &syn).to_owned();
    refuse_openly(c, &syn, &only);
    // The next connection from the same port is a new one.
    c.request_to(&only, &syn.seq(FIRST + 100_000));
    assert_eq!(c.flows().only_state(), FlowState::SynSent);
}

/// A slow endpoint gets the same SYN twice more, and then no other flow.
pub fn the_only_endpoint_gets_repeated_syns(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(1);
    c.set(&at.web(1));
    let syn = syn(at, 40000);
    let only = dial(c, &backends, &syn).to_owned();
    for _ in 0..4 {
        c.wait(1);
        repeat(c, &syn).becomes(&syn.to(only.as_str()));
    }
    accept(c, &syn, &only);
}

/// If all endpoints refuse, the client learns it from the third.
pub fn a_connection_moves_twice_at_most(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(5);
    c.set(&at.web(5));
    let syn = syn(at, 40000);
    let mut tried = vec![dial(c, &backends, &syn)];
    for _ in 0..FlowKind::MOST_MOVES {
        refuse(c, &syn, tried[tried.len() - 1]);
        let next = redial(c, &backends, &syn);
        assert!(!tried.contains(&next), "{next} after {tried:?}");
        tried.push(next);
    }
    refuse_openly(c, &syn, tried[tried.len() - 1]);
}

/// An endpoint that refuses what one client sends is as good as before for all others.
pub fn a_refusal_moves_no_other_connection(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(3);
    c.set(&at.web(3));
    for port in 40000..40008 {
        let refused = syn(at, port);
        let backend = dial(c, &backends, &refused).to_owned();
        refuse(c, &refused, &backend);
        // From the same port, but a new connection.
        c.request_to(&backend, &refused.seq(FIRST + 100_000));
    }
}

/// The connections of an endpoint that ends are distributed over all others.
pub fn refused_connections_are_distributed(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(4);
    c.set(&at.web(4));
    let mut taken = [0; 4];
    for port in 40000..40128 {
        let syn = syn(at, port);
        let mut chosen = dial(c, &backends, &syn);
        if chosen == backends[0] {
            refuse(c, &syn, chosen);
            chosen = redial(c, &backends, &syn);
            taken[backends.iter().position(|backend| backend == chosen).expect("known")] += 1;
        }
    }
    assert!(taken[0] == 0 && taken[1..].iter().all(|&taken| taken > 3), "{taken:?}");
}

pub fn affinity_follows_to_the_second_endpoint(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(3);
    c.set(&at.web(3).affinity(3600));
    let first_syn = syn(at, 40000);
    let first = dial(c, &backends, &first_syn);
    // A lost packet does not end affinity.
    c.wait(1);
    repeat(c, &first_syn).becomes(&first_syn.to(first));
    refuse(c, &first_syn, first);
    let second = redial(c, &backends, &first_syn);
    assert_ne!(second, first);
    for port in 40001..40009 {
        assert_eq!(dial(c, &backends, &syn(at, port)), second);
    }
}

/// The other endpoint is on another node, and the policy is `Local`.
pub fn a_connection_does_not_leave_the_local_endpoints(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(3);
    let [local, remote, second] = [0, 1, 2].map(|number: usize| backends[number].as_str());
    c.node_addresses(&[at.node]);
    let web = at.web(0).load_balancer(&at.load_balancer(80)).external_local();
    c.set(&web.clone().local_backends(&[local]).remote_backends(&[remote]));
    let to_address =
        |port| tcp(at.client(port).as_str(), at.load_balancer(80).as_str()).syn().seq(FIRST);
    let refused = to_address(40000);
    c.request_to(local, &refused);
    refuse_openly(c, &refused, local);
    c.set(&web.local_backends(&[local, second]).remote_backends(&[remote]));
    for port in 41000..41016 {
        let refused = to_address(port);
        let chosen = c.forward(&refused).chosen(&[local, second], |b| refused.to(b)).to_owned();
        refuse(c, &refused, &chosen);
        let next = repeat(c, &refused).chosen(&[local, second], |b| refused.to(b)).to_owned();
        assert_ne!(next, chosen);
    }
}

/// Both endpoints are on other nodes, so their replies arrive. XDP leaves a refusal to tc.
pub fn a_refusal_from_another_node_arrives(c: &mut Conversation, at: &Ends) {
    for index in [OUTSIDE, INSIDE, ASIDE] {
        c.device(index, |_| {});
    }
    c.node_addresses(&[&own_address(at, INSIDE), &own_address(at, OUTSIDE)]);
    let backends = at.backends(2);
    let [one, other] = [&*backends[0], &*backends[1]];
    c.set(&at.web(0).remote_backends(&[one, other]));
    c.exit(&address(&at.client(0)), neighbour(OUTSIDE, CLIENT_MAC));
    for backend in [one, other] {
        c.exit(&address(backend), neighbour(INSIDE, ROUTER_MAC));
    }
    let syn = syn(at, 40000);
    let there = forwarded(&syn, INSIDE, ROUTER_MAC);
    let sent = c.forward(&syn);
    let (snat, first) = ends(&sent.outcome.bytes);
    sent.leaves_by(INSIDE, &there.from(snat.as_str()).to(first.as_str()));
    let second = if first == one { other } else { one };
    let arriving = refusal(&syn).from(first.as_str()).to(snat.as_str());
    c.forward(&arriving).is_deferred_for(&[]);
    assert_eq!(c.flows().only_state(), FlowState::SynSent, "tc decides");
    let back = forwarded(&unacknowledged(&syn), OUTSIDE, CLIENT_MAC);
    c.stack(&arriving).leaves_by(OUTSIDE, &back);
    let moved = repeat(c, &syn);
    let (snat, _) = ends(&moved.outcome.bytes);
    let there = there.from(snat.as_str()).to(second);
    moved.leaves_by_for(INSIDE, &there, Reason::Moved);
    let accepts = syn_ack(&syn);
    c.forward(&accepts.from(second).to(snat.as_str()))
        .leaves_by(OUTSIDE, &forwarded(&accepts, OUTSIDE, CLIENT_MAC));
}

/// This node has not chosen the endpoint, and the client's node cannot see its replies.
pub fn a_tunnel_brings_refusals_back_as_they_are(c: &mut Conversation, at: &Ends) {
    use lb_common::layout::Forwarding::Gue;
    let backends = receive(c, at, Gue, 2);
    let syn = syn(at, 40000);
    c.forward(&arriving(at, Gue, &syn, &backends[0])).becomes(&syn.to(backends[0].as_str()));
    refuse_openly(c, &syn, &backends[0]);
}

/// A pod's connection to an endpoint of its node: both hooks are the pods'.
pub fn a_pod_moves_too(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let syn = syn(at, 40000);
    let first = c.from_pod(&syn).chosen(&backends, |backend| syn.to(backend)).to_owned();
    refuse(c, &syn, &first);
    let moved = c.from_pod(&syn);
    assert!(moved.was_counted_for(Reason::Moved));
    assert_ne!(moved.chosen(&backends, |backend| syn.to(backend)), first);
}

/// Without XDP, on interfaces with or without link-layer headers. The only endpoint that is left refuses openly.
pub fn a_refused_connection_moves_without_xdp(c: &mut Conversation, at: &Ends) {
    let backends = at.backends(2);
    c.set(&at.web(2));
    let names: Vec<&str> = backends.iter().map(String::as_str).collect();
    let syn = syn(at, 40000);
    let first = c.stack(&syn).chosen(&names, |backend| syn.to(backend)).to_owned();
    refuse(c, &syn, &first);
    let other = names.iter().find(|name| **name != first).expect("two backends");
    c.stack(&syn).becomes_for(&syn.to(*other), Reason::Moved);
    refuse_openly(c, &syn, other);
    c.set(&at.web(1));
    let again = syn.seq(FIRST + 100_000);
    c.stack(&again).becomes(&again.to(backends[0].as_str()));
    c.wait(1);
    c.stack(&again).becomes(&again.to(backends[0].as_str()));
}
