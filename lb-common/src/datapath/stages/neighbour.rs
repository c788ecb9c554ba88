//! ARP and neighbour discovery: answers for the addresses that this node announces, so that clients
//! on the link send packets for them here; and notes other machines that use such an address.
//!
//! Only for packets from outside, in tc. What is not answered passes unmodified to the stack, which
//! answers for the node's own addresses. An answer goes only to the sender of the request, or to
//! all nodes if the sender has no address yet, and is no longer than a usual request. So nothing
//! limits its rate, as nothing does in the stack.

use crate::datapath::forward::own;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::Verdict;
use crate::datapath::wire::arp::{self, LinkAddress};
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::{link, ndp, outer::Outer};
use crate::family::{Family, V4, V6};
use crate::header::Ethernet;
use crate::layout::{AnnouncedAddress, NeighbourEvent};

/// Whether this hook answers neighbours: in tc, for packets from outside. A pod reaches announced
/// addresses by way of its node, whose address it asks for.
#[inline(always)]
pub fn answers_here<P: Packet>(packet: &P) -> bool {
    packet.resolves() && packet.role() == Role::External && !packet.is_raw()
}

/// A packet of ARP or neighbour discovery.
#[inline(always)]
pub fn answer_neighbour<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    // Not the one that was handed over: that is of IP packets only.
    let Some(frame) = link::parse_frame(packet) else {
        return Verdict::Pass;
    };
    let Some(ends) = read_link_ends(packet, tables) else {
        return Verdict::Pass;
    };
    let answered = match frame.ether_type {
        arp::ETHER_TYPE => answer_arp(packet, tables, frame.network, &ends),
        V6::ETHER_TYPE => answer_ndp(packet, tables, frame.network, &ends),
        _ => None,
    };
    match answered {
        Some(()) => Verdict::Transmit,
        None => Verdict::Pass,
    }
}

/// The link-layer addresses of a frame from another machine.
struct Ends {
    own: LinkAddress,
    sender: LinkAddress,
    /// To this interface, or to a group. Others are seen on a bridge, or where a switch has
    /// forgotten their receiver; they may be probes of another node.
    is_for_us: bool,
}

#[inline(always)]
fn read_link_ends<P, T>(packet: &P, tables: &T) -> Option<Ends>
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let own = tables.device(packet.device())?.link_address;
    let ethernet: &Ethernet = packet.header(0)?;
    let (sender, receiver) = (ethernet.source, ethernet.destination);
    // The network may return the node's own frames.
    if !arp::is_single(sender) || !arp::is_single(own) || sender == own {
        return None;
    }
    let is_for_us = receiver[0] & 1 != 0 || receiver == own;
    Some(Ends { own, sender, is_for_us })
}

/// `None`: the packet is left to the stack.
#[inline(always)]
fn answer_arp<P, T>(packet: &mut P, tables: &T, network: usize, ends: &Ends) -> Option<()>
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let message = arp::read_arp(packet, network)?;
    if message.sender_link != ends.own {
        note_claim::<V4, P, T>(packet, tables, message.sender, message.sender_link);
    }
    if !message.is_request || message.is_gratuitous() || !ends.is_for_us {
        return None;
    }
    if !is_announced::<V4, P, T>(packet, tables, message.target) {
        return None;
    }
    arp::write_arp_reply(packet, network, ends.own)?;
    tables.count_neighbour(NeighbourEvent::Arp);
    Some(())
}

#[inline(always)]
fn answer_ndp<P, T>(packet: &mut P, tables: &T, network: usize, ends: &Ends) -> Option<()>
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let message = ndp::read_ndp(packet, network)?;
    if !message.is_solicitation {
        let named = message.target_link;
        let claimant = if arp::is_single(named) { named } else { ends.sender };
        if claimant != ends.own {
            note_claim::<V6, P, T>(packet, tables, message.target, claimant);
        }
        return None;
    }
    if !ends.is_for_us || !is_announced::<V6, P, T>(packet, tables, message.target) {
        return None;
    }
    ndp::write_ndp_advertisement(packet, network, &message, ends.own)?;
    tables.count_neighbour(NeighbourEvent::Ndp);
    Some(())
}

/// Whether this node answers for the address instead of its stack.
#[inline(always)]
fn is_announced<F: Outer, P, T>(packet: &P, tables: &T, address: F::Address) -> bool
where
    P: Packet,
    T: FamilyTables<F>,
{
    let at = AnnouncedAddress::new(packet.device(), address);
    let Some(announced) = tables.announced(&at) else { return false };
    if announced.deadline <= tables.since_boot() {
        tables.count_neighbour(NeighbourEvent::Expired);
        return false;
    }
    !own::is_own(packet, tables, address)
}

/// Notes that another machine uses an address, if the agent watches it.
#[inline(always)]
fn note_claim<F: Family, P, T>(packet: &P, tables: &T, address: F::Address, claimant: LinkAddress)
where
    P: Packet,
    T: FamilyTables<F>,
{
    if address == F::Address::default() {
        return;
    }
    if tables.set_claim(&AnnouncedAddress::new(packet.device(), address), claimant) {
        tables.count_neighbour(NeighbourEvent::Claimed);
    }
}
