//! Packets of connections that are not known here, for slots that had other owners.

use std::net::SocketAddr;

use lb_common::layout::{FlowState, Forwarding, Reason};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_rules::model::Backend;

use super::Ends;
use super::tunnel_keys::{KEY, marked};
use super::tunnels::{ROUTER_MAC, arriving, leaving, network};
use crate::packets::Packet;
use crate::packets::datapath::surroundings::{INSIDE, OUTSIDE, neighbour};
use crate::packets::datapath::{Conversation, Service};

/// Added to the number of a question that is returned.
const RETURNED: u8 = 0x80;

/// Each of the first five backends has a node of its own. The sixth is on that of the first.
fn beside(at: &Ends, backend: usize) -> Ends {
    at.beside(backend % 5)
}

/// The Service with its only backend on this node, or on another one; the others are draining.
fn owned_by(at: &Ends, owner: usize, all: &[(usize, bool)]) -> Service {
    let backends = at.backends(8);
    let backend = |&(number, local): &(usize, bool)| {
        let end: SocketAddr = backends[number].parse().expect("an end of a case");
        let node = beside(at, number).elsewhere.parse().expect("an address of a case");
        let node = (!local).then_some(node);
        Backend { address: end.ip(), port: end.port(), local, node, weight: DEFAULT_WEIGHT }
    };
    let mut service = at.web(0).forwarding(Forwarding::Gue);
    for one in all {
        let pool =
            if one.0 == owner { &mut service.port.cluster } else { &mut service.port.draining };
        pool.insert(backend(one));
    }
    service.port.populated = true;
    service
}

/// A node with a key and others, which can be asked. The slot led to the backends in this
/// order, and leads to the last one now; of each: its number, and whether it is on this node.
fn history(c: &mut Conversation, at: &Ends, owners: &[(usize, bool)]) {
    c.node_addresses(&[at.node]);
    let others = [0, 1, 2, 3, 4].map(|node| at.beside(node).elsewhere);
    c.peers(&others);
    c.tunnel_keys([KEY, 0]);
    for index in [OUTSIDE, INSIDE] {
        c.device(index, |_| {});
    }
    for other in others {
        c.exit(other, neighbour(INSIDE, ROUTER_MAC));
        c.returning_peer(other);
    }
    for (owner, _) in owners {
        c.set(&owned_by(at, *owner, owners));
    }
}

/// The slot leads to a backend here, and led to one on the other node before.
pub fn with_an_earlier_owner(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
}

/// The other node asks about a packet.
pub fn question_to_this_node(at: &Ends, packet: &Packet) -> Packet {
    from_tunnel(at, packet, 1, 1)
}

/// The question about a packet to this backend's node.
fn question(at: &Ends, packet: &Packet, flow: &Packet, backend: usize, number: u8) -> Packet {
    let at = &beside(at, backend);
    let plain = leaving(at, Forwarding::Gue, packet, flow, &at.backends(8)[backend]);
    marked(at, &plain, KEY, number)
}

/// The packet in a tunnel for a backend: from its node, or from another one if it is on this node.
fn from_tunnel(at: &Ends, packet: &Packet, backend: usize, mark: u8) -> Packet {
    let at = &beside(at, backend);
    marked(at, &arriving(at, Forwarding::Gue, packet, &at.backends(8)[backend]), KEY, mark)
}

/// The packet with the machines swapped that it is from and to, and the ports as they are.
fn sent_back(at: &Ends, packet: &Packet) -> Packet {
    let (addresses, length) = if at.is_v6() { (8, 32) } else { (12, 8) };
    let first = network(packet) + addresses;
    packet.with(move |bytes| {
        bytes[..12].rotate_left(6);
        bytes[first..first + length].rotate_left(length / 2);
    })
}

pub fn an_earlier_owner_is_asked_about_an_unknown_connection(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    let request = at.to_web(40000);
    for packet in [request.ack(), request.psh_ack().payload(b"question")] {
        let asked = question(at, &packet, &request, 0, 1);
        let processed = c.forward(&packet);
        if processed.was_counted_for(Reason::Asked) {
            processed.leaves_by_for(INSIDE, &asked, Reason::Asked);
        } else {
            // The flow leads there now.
            processed.leaves_by(INSIDE, &asked);
        }
    }
    assert_eq!(c.flows().states(), [FlowState::OneWayProbation]);
    // In tc, too.
    let request = at.to_web(40001);
    let asked = question(at, &request.ack(), &request, 0, 1);
    c.stack(&request.ack()).leaves_by_for(INSIDE, &asked, Reason::Asked);
}

/// Another node has chosen the backend here.
pub fn a_packet_from_a_tunnel_is_asked_about_too(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    let request = at.to_web(40000);
    let arrived = from_tunnel(at, &request.ack(), 1, 0);
    let asked = question(at, &request.ack(), &request, 0, 1);
    c.forward(&arrived).leaves_by_for(INSIDE, &asked, Reason::Asked);
    c.forward(&arrived).leaves_by(INSIDE, &asked);
    // A new connection is the backend's.
    let other = at.to_web(40001);
    let to = at.backends(2).remove(1);
    c.forward(&from_tunnel(at, &other.syn(), 1, 0)).becomes(&other.syn().to(to.as_str()));
    c.forward(&from_tunnel(at, &other.ack(), 1, 0)).becomes(&other.ack().to(to.as_str()));
}

/// Both if it arrived here and if it came through a tunnel.
pub fn packets_of_unknown_connections_reach_the_backend_here(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    let to = at.backends(2).remove(1);
    for port in [40000, 40001] {
        let packet = at.to_web(port).ack();
        let arrived = if port == 40000 { packet.clone() } else { from_tunnel(at, &packet, 1, 0) };
        let asked = question(at, &packet, &packet, 0, 1);
        c.forward(&arrived).leaves_by_for(INSIDE, &asked, Reason::Asked);
        c.forward(&from_tunnel(at, &packet, 0, RETURNED | 1)).becomes(&packet.to(to.as_str()));
        c.forward(&arrived).becomes(&packet.to(to.as_str()));
        // A reply that is late finds the flow.
        c.forward(&from_tunnel(at, &packet, 0, RETURNED | 1)).becomes(&packet.to(to.as_str()));
    }
    assert_eq!(c.flows().states(), [FlowState::PickedUp; 2]);
}

/// This node forwarded a connection to the current owner's node, which has redirected it. Its own
/// backend there goes, and the connection's continues.
pub fn a_connection_goes_to_the_next_owner_of_its_slot(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false)]);
    let request = at.to_web(40000);
    let sent = |packet: &Packet, backend| question(at, packet, &request, backend, 0);
    c.forward(&request.ack()).leaves_by(INSIDE, &sent(&request.ack(), 0));
    c.set(&owned_by(at, 1, &[(1, false)]));
    c.forward(&request.ack()).leaves_by(INSIDE, &sent(&request.ack(), 1));
    // Without an earlier owner, there is no node to ask.
    c.set(&at.web(0).forwarding(Forwarding::Gue));
    let more = request.ack().ack_number(5);
    let reset = more.reversed().rst().seq(5).ack_number(0).window(0).ttl(64).id(0);
    c.forward(&more).is_answered_by(&reset, Reason::NoBackend);
}

/// A client uses a port again, and its new connection begins on another node. Then the router moves
/// it to this node, which has the flow of the old one, whose backend here is gone.
pub fn a_later_connection_of_the_same_port_goes_to_its_own_owner(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, true)]);
    let request = at.to_web(40000);
    let to = at.backends(1).remove(0);
    for packet in [request.syn(), request.ack()] {
        c.forward(&from_tunnel(at, &packet, 0, 0)).becomes(&packet.to(to.as_str()));
    }
    c.set(&owned_by(at, 1, &[(1, false)]));
    let sent = question(at, &request.ack(), &request, 1, 0);
    c.forward(&request.ack()).leaves_by(INSIDE, &sent);
}

/// A connection goes to the next owner of its slot if the old one came from the router, not through a tunnel.
pub fn so_does_one_after_a_connection_from_the_router(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, true)]);
    let request = at.to_web(40000);
    let to = at.backends(1).remove(0);
    for packet in [request.syn(), request.ack()] {
        c.forward(&packet).becomes(&packet.to(to.as_str()));
    }
    c.set(&owned_by(at, 1, &[(1, false)]));
    let sent = question(at, &request.ack(), &request, 1, 0);
    c.forward(&request.ack()).leaves_by(INSIDE, &sent);
}

/// Opens a connection to a backend here, whose numbers are around [`CLIENT`] and [`BACKEND`]. Returns
/// packets of both sides.
fn open(c: &mut Conversation, request: &Packet, backend: &str) -> (Packet, Packet) {
    let reply = request.reversed().seq(BACKEND).ack_number(CLIENT + 1);
    c.request_to(backend, &request.seq(CLIENT).syn());
    c.reply_from(backend, &reply.syn_ack());
    let request = request.seq(CLIENT + 1).ack_number(BACKEND + 1);
    c.request_to(backend, &request.ack());
    (request, reply)
}

/// Opens a connection, which both sides close.
fn close(c: &mut Conversation, request: &Packet, backend: &str) {
    let (request, reply) = open(c, request, backend);
    c.request_to(backend, &request.fin_ack());
    c.reply_from(backend, &reply.fin_ack());
    c.request_to(backend, &request.ack());
    assert!(c.flows().states().contains(&FlowState::TimeWait));
}

const CLIENT: u32 = 0x1000_0000;
const BACKEND: u32 = 0xfff0_0000;
/// Farther than packets of a connection are from each other.
const FAR: u32 = 0x0800_0000;

/// A client has closed a connection, and uses its port again. The new connection begins on another
/// node, and then the router moves it here, where the old one's backend lives and its flow is in
/// TIME_WAIT: sequence numbers tell the two apart.
pub fn a_later_connection_does_not_follow_the_flow_of_a_closed_one(
    c: &mut Conversation,
    at: &Ends,
) {
    history(c, at, &[(0, false), (1, true)]);
    let request = at.to_web(40000);
    close(c, &request, &at.backends(2)[1]);
    let later = request.seq(CLIENT + FAR).ack_number(BACKEND).ack();
    let asked = question(at, &later, &request, 0, 1);
    c.forward(&later).leaves_by_for(INSIDE, &asked, Reason::Asked);
    c.forward(&later).leaves_by(INSIDE, &asked);
}

/// The slot leads to another node now. The later connection comes from the router, or through a tunnel.
pub fn nor_does_one_whose_slot_has_another_owner(c: &mut Conversation, at: &Ends) {
    let to = at.backends(1).remove(0);
    for port in [40000, 40001] {
        history(c, at, &[(0, true)]);
        let request = at.to_web(port);
        close(c, &request, &to);
        c.set(&owned_by(at, 1, &[(0, true), (1, false)]));
        let later = request.seq(CLIENT).ack_number(BACKEND.wrapping_add(FAR)).psh_ack();
        if port == 40000 {
            c.forward(&later).leaves_by(INSIDE, &question(at, &later, &request, 1, 0));
        } else {
            let asked = question(at, &later, &request, 1, 1);
            let arrived = from_tunnel(at, &later, 0, 0);
            c.forward(&arrived).leaves_by_for(INSIDE, &asked, Reason::Asked);
        }
    }
}

/// The last packets of a closed connection are near its positions, and nothing that a blind sender
/// makes up moves a connection that lives.
pub fn nothing_else_leaves_the_flow_of_a_connection(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, true)]);
    let to = at.backends(1).remove(0);
    let (closed, live) = (at.to_web(40000), at.to_web(40001));
    close(c, &closed, &to);
    let (live, _) = open(c, &live, &to);
    c.set(&owned_by(at, 1, &[(0, true), (1, false)]));
    let near = FAR / 4;
    for (sequence, acknowledged) in [(near, 0), (0, near), (near.wrapping_neg(), near)] {
        let number = |of: u32, by: u32| of.wrapping_add(by);
        let packet = closed.seq(number(CLIENT, sequence)).ack_number(number(BACKEND, acknowledged));
        c.request_to(&to, &packet.ack());
        c.request_to(&to, &packet.fin_ack());
    }
    let far = |packet: &Packet| packet.seq(CLIENT + FAR).ack_number(BACKEND.wrapping_add(FAR));
    // A reset without an acknowledgement has only one number, and a SYN begins a connection.
    c.request_to(&to, &far(&closed).rst());
    for packet in [far(&live).ack(), far(&live).psh_ack(), far(&live).fin_ack()] {
        c.request_to(&to, &packet);
    }
    c.request_to(&to, &live.fin_ack());
    for packet in [far(&live).ack(), far(&live).fin_ack(), far(&live).syn()] {
        c.request_to(&to, &packet);
    }
    let states = c.flows().states();
    assert_eq!(states.len(), 2);
    assert!([FlowState::FinFromClient, FlowState::TimeWait].iter().all(|s| states.contains(s)));
}

/// Another node has the flow of an old connection of the same port, to a backend here that lives but
/// no longer owns the slot. The owner's node is asked first, then those of earlier owners.
pub fn the_owner_is_asked_about_a_packet_for_an_earlier_one(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true), (2, false)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    let returned = |owner, number| from_tunnel(at, &packet, owner, RETURNED | number);
    c.forward(&from_tunnel(at, &packet, 1, 0)).leaves_by_for(INSIDE, &asked(2, 1), Reason::Asked);
    c.forward(&returned(2, 1)).leaves_by_for(INSIDE, &asked(0, 2), Reason::Asked);
    // No node knows it: the backend here resets it.
    c.forward(&returned(0, 2)).becomes(&packet.to(at.backends(2)[1].as_str()));
}

/// This node forwarded an old connection of the same port to the node of a backend that is not among
/// the slot's owners. That node is asked first, and then every earlier owner.
pub fn a_stale_flow_costs_a_question_but_no_owner(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(3, false)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    let returned = |owner, number| from_tunnel(at, &packet, owner, RETURNED | number);
    for _ in 0..3 {
        c.wait(40);
        c.forward(&packet).leaves_by(INSIDE, &asked(3, 0));
    }
    // Its pool was empty in between, so the slot has a new history.
    c.set(&owned_by(at, 8, &[(3, false)]));
    for owner in [0, 1, 2] {
        c.set(&owned_by(at, owner, &[(0, false), (1, false), (2, true), (3, false)]));
    }
    let arrived = from_tunnel(at, &packet, 2, 0);
    c.forward(&arrived).leaves_by(INSIDE, &asked(3, 1));
    c.forward(&returned(3, 1)).leaves_by_for(INSIDE, &asked(1, 2), Reason::Asked);
    c.forward(&returned(1, 2)).leaves_by_for(INSIDE, &asked(0, 3), Reason::Asked);
    c.forward(&returned(0, 3)).becomes(&packet.to(at.backends(3)[2].as_str()));
}

/// This node received a connection from the router, and forwarded it. Now its slot leads to a backend here, and another
/// node receives the connection: it forwards it to this node, which knows where it belongs.
pub fn a_connection_that_this_node_forwarded_comes_back(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false)]);
    let request = at.to_web(40000);
    let sent = question(at, &request.ack(), &request, 0, 0);
    for _ in 0..3 {
        c.wait(40);
        c.forward(&request.ack()).leaves_by(INSIDE, &sent);
    }
    assert_eq!(c.flows().states(), [FlowState::OneWayEstablished]);
    c.set(&owned_by(at, 1, &[(0, false), (1, true)]));
    let arrived = from_tunnel(at, &request.ack(), 1, 0);
    let asked = question(at, &request.ack(), &request, 0, 1);
    for _ in 0..3 {
        c.forward(&arrived).leaves_by(INSIDE, &asked);
    }
    // From the router it takes the old way.
    c.forward(&request.ack()).leaves_by(INSIDE, &sent);
    // The other node does not know it any more.
    let to = at.backends(2).remove(1);
    c.forward(&from_tunnel(at, &request.ack(), 0, RETURNED | 1))
        .becomes(&request.ack().to(to.as_str()));
}

/// A stale flow to a node of an older version, which would not deliver a question.
pub fn a_flow_to_an_older_node_becomes_no_question(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false)]);
    c.tunnel_peer(at.elsewhere);
    let request = at.to_web(40000);
    let sent = question(at, &request.ack(), &request, 0, 0);
    c.forward(&request.ack()).leaves_by(INSIDE, &sent);
    c.set(&owned_by(at, 1, &[(0, false), (1, true)]));
    let arrived = from_tunnel(at, &request.ack(), 1, 0);
    let to = at.backends(2).remove(1);
    c.forward(&arrived).becomes(&request.ack().to(to.as_str()));
}

pub fn every_earlier_owner_is_asked_once_in_order(c: &mut Conversation, at: &Ends) {
    // One of the five is on this node, which knows its own connections; at most three are asked.
    history(c, at, &[(0, false), (1, false), (2, true), (3, false), (4, false), (5, true)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    let returned = |owner, number| from_tunnel(at, &packet, owner, RETURNED | number);
    c.forward(&packet).leaves_by_for(INSIDE, &asked(4, 1), Reason::Asked);
    c.forward(&returned(4, 1)).leaves_by_for(INSIDE, &asked(3, 2), Reason::Asked);
    // A second packet was on its way when the first one was returned.
    c.forward(&returned(4, 1)).leaves_by(INSIDE, &asked(3, 2));
    c.forward(&returned(3, 2)).leaves_by_for(INSIDE, &asked(1, 3), Reason::Asked);
    let to = at.backends(6).remove(5);
    c.forward(&returned(1, 3)).becomes(&packet.to(to.as_str()));
}

/// A node knows the connections of all its backends.
pub fn each_node_is_asked_once(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(1, false), (0, false), (5, false), (2, true)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    let returned = |owner, number| from_tunnel(at, &packet, owner, RETURNED | number);
    c.forward(&packet).leaves_by_for(INSIDE, &asked(5, 1), Reason::Asked);
    c.forward(&returned(5, 1)).leaves_by_for(INSIDE, &asked(1, 2), Reason::Asked);
    let to = at.backends(3).remove(2);
    c.forward(&returned(1, 2)).becomes(&packet.to(to.as_str()));

    // Of the two on one node, the last owner has gone: the other one stands for both.
    c.set(&owned_by(at, 2, &[(1, false), (0, false), (2, true)]));
    let packet = at.to_web(40001).ack();
    let asked = question(at, &packet, &packet, 0, 1);
    c.forward(&packet).leaves_by_for(INSIDE, &asked, Reason::Asked);
}

/// Another node has an old flow to a backend here. The owner's node is asked first, and not again for an earlier owner.
pub fn the_owners_node_is_asked_once(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(1, false), (2, true), (0, false), (5, false)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    let returned = |owner, number| from_tunnel(at, &packet, owner, RETURNED | number);
    c.forward(&from_tunnel(at, &packet, 2, 0)).leaves_by_for(INSIDE, &asked(5, 1), Reason::Asked);
    c.forward(&returned(5, 1)).leaves_by_for(INSIDE, &asked(1, 2), Reason::Asked);
    c.forward(&returned(1, 2)).becomes(&packet.to(at.backends(3)[2].as_str()));
}

pub fn a_flow_stays_with_the_node_that_knows_it(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, false), (2, true)]);
    let packet = at.to_web(40000).ack();
    let asked = |owner, number| question(at, &packet, &packet, owner, number);
    c.forward(&packet).leaves_by_for(INSIDE, &asked(1, 1), Reason::Asked);
    let returned = from_tunnel(at, &packet, 1, RETURNED | 1);
    c.forward(&returned).leaves_by_for(INSIDE, &asked(0, 2), Reason::Asked);
    for _ in 0..3 {
        c.forward(&packet).leaves_by(INSIDE, &asked(0, 2));
        c.forward(&from_tunnel(at, &packet, 2, 0)).leaves_by(INSIDE, &asked(0, 2));
        c.wait(40);
    }
    assert_eq!(c.flows().states(), [FlowState::OneWayEstablished]);
    // Also if it does not know it any more: then the backend here replies.
    let to = at.backends(3).remove(2);
    c.forward(&from_tunnel(at, &packet, 0, RETURNED | 2)).becomes(&packet.to(to.as_str()));
}

/// The new connection follows the old one's flow first.
pub fn a_new_connection_from_the_same_port_reaches_the_backend_here(
    c: &mut Conversation,
    at: &Ends,
) {
    history(c, at, &[(0, false), (1, true)]);
    let (old, new) = (at.to_web(40000).ack(), at.to_web(40000).syn());
    let asked = |packet: &Packet| question(at, packet, packet, 0, 1);
    c.forward(&old).leaves_by_for(INSIDE, &asked(&old), Reason::Asked);
    c.forward(&new).leaves_by(INSIDE, &asked(&new));
    let to = at.backends(2).remove(1);
    c.forward(&from_tunnel(at, &new, 0, RETURNED | 1)).becomes(&new.to(to.as_str()));
    c.forward(&old).becomes(&old.to(to.as_str()));
}

pub fn a_node_that_is_asked_delivers_what_it_knows(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, true)]);
    let to = at.backends(1).remove(0);
    // One connection came through a tunnel, the other one directly.
    for port in [40000, 40001] {
        let request = at.to_web(port);
        let syn = request.syn();
        let arrived = if port == 40000 { syn.clone() } else { from_tunnel(at, &syn, 0, 0) };
        c.forward(&arrived).becomes(&syn.to(to.as_str()));
        for number in 1..=3 {
            c.forward(&from_tunnel(at, &request.ack(), 0, number))
                .becomes_for(&request.ack().to(to.as_str()), Reason::Recognized);
        }
    }
}

pub fn a_node_that_is_asked_returns_what_it_does_not_know(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, true)]);
    let packet = at.to_web(40000).ack();
    for number in 1..=3 {
        let asked = from_tunnel(at, &packet, 0, number);
        let returned = from_tunnel(at, &packet, 0, RETURNED | number);
        let outer = sent_back(at, &returned);
        c.forward(&asked).is_answered_by(&outer, Reason::Returned);
        c.stack(&asked).is_answered_by(&outer, Reason::Returned);
    }
    assert!(c.flows().is_empty());
    // What XDP cannot send is left to tc.
    c.device(OUTSIDE, |device| device.transmit = false);
    c.forward(&from_tunnel(at, &packet, 0, 1)).is_deferred_for(&[]);
}

/// Although its slot had other owners, too, and although a flow leads to another node.
pub fn a_node_that_is_asked_never_forwards(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    let packet = at.to_web(40000).ack();
    let returned = sent_back(at, &from_tunnel(at, &packet, 1, RETURNED | 1));
    c.forward(&from_tunnel(at, &packet, 1, 1)).is_answered_by(&returned, Reason::Returned);
    let asked = question(at, &packet, &packet, 0, 1);
    c.forward(&packet).leaves_by_for(INSIDE, &asked, Reason::Asked);
    c.forward(&from_tunnel(at, &packet, 1, 1)).is_answered_by(&returned, Reason::Returned);
}

pub fn other_marks_are_refused(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    let packet = at.to_web(40000).ack();
    for mark in [4, 5, 0x10, 0x40, 0x7f, RETURNED, RETURNED | 4, 0xff] {
        c.forward(&from_tunnel(at, &packet, 1, mark)).passes_for(Reason::WrongTunnelKey);
    }
    // Without the key, a mark says nothing.
    let plain = arriving(at, Forwarding::Gue, &packet, &at.backends(2)[1]);
    let wrong = marked(at, &plain, KEY ^ 1, 1);
    c.forward(&wrong).passes_for(Reason::WrongTunnelKey);
    assert!(c.flows().is_empty());
}

pub fn only_nodes_that_return_packets_are_asked(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    // It is of an older version.
    c.tunnel_peer(at.elsewhere);
    let packet = at.to_web(40000).ack();
    c.forward(&packet).becomes(&packet.to(at.backends(2)[1].as_str()));
}

pub fn nothing_is_asked_without_history_or_about_other_packets(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(1, true)]);
    let to = at.backends(2).remove(1);
    let packet = at.to_web(40000).ack();
    c.forward(&packet).becomes(&packet.to(to.as_str()));
    history(c, at, &[(0, false), (1, true)]);
    let syn = at.to_web(40001).syn();
    c.forward(&syn).becomes(&syn.to(to.as_str()));
    // The first connection is known by now.
    c.forward(&packet).becomes(&packet.to(to.as_str()));
    // Without a key there is no room for a question.
    c.tunnel_keys([0, 0]);
    let packet = at.to_web(40002).ack();
    c.forward(&packet).becomes(&packet.to(to.as_str()));
    let plain = arriving(at, Forwarding::Gue, &at.to_web(40003).ack(), &to);
    c.forward(&plain).becomes(&at.to_web(40003).ack().to(to.as_str()));
    // Nor is there anything to ask if this node translates clients' addresses.
    c.tunnel_keys([KEY, 0]);
    c.set(&owned_by(at, 1, &[(0, false), (1, true)]).forwarding(Forwarding::Masquerade));
    let packet = at.to_web(40004).ack();
    c.forward(&packet).becomes(&packet.to(to.as_str()));
}

pub fn earlier_owners_that_are_gone_are_not_asked(c: &mut Conversation, at: &Ends) {
    history(c, at, &[(0, false), (1, true)]);
    c.set(&owned_by(at, 1, &[(1, true)]));
    let packet = at.to_web(40000).ack();
    c.forward(&packet).becomes(&packet.to(at.backends(2)[1].as_str()));
}
