//! Tunnelled packets that are sent back as they came.
//!
//! By probes a node learns that another one takes packets out of tunnels: the other one's data plane
//! sends them back. A probe is a control message of Generic UDP Encapsulation with the cluster's key.
//! It comes to the same place as a tunnelled packet, so whatever stops one stops the other, too.
//!
//! Packets about whose connection another node asks are sent back if it is not known here
//! ([`super::earlier`]).

use core::mem::{offset_of, swap};

use crate::checksum::Delta;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::link;
use crate::datapath::wire::outer::{KEYED, Outer, UDP};
use crate::datapath::wire::packet::Packet;
use crate::header::{KeyedGue, NetworkHeader, Udp};
use crate::layout::{Device, Reason, TunnelPeer};

/// The field behind a probe's number, in which the node that returns it says what else it does. Old
/// agents send no such field.
const ABILITY: usize = KEYED + size_of::<u64>();

/// Returns a probe, or a packet of an unknown connection, to the node that sent it.
#[inline(never)]
pub fn return_to_node<const PROBE: bool, F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    packet.keep_whole();
    let can_send = packet.resolves()
        || tables.device(packet.device()).is_some_and(|it| it.flags & Device::TRANSMIT != 0);
    if !can_send {
        return Verdict::Defer;
    }
    let may = if PROBE { tables.may_reject() } else { tables.may_ask() };
    if !may {
        return drop_for(tables, Reason::RateLimited);
    }
    if !PROBE {
        tables.count(Reason::Returned);
    }
    match turn_round::<PROBE, F, P>(packet, network) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

#[inline(always)]
fn turn_round<const PROBE: bool, F: Outer, P: Packet>(
    packet: &mut P,
    network: usize,
) -> Option<()> {
    let header: &mut F::Header = packet.header_mut(network)?;
    // Neither these nor the ports change a sum.
    let (source, destination) = (header.source(), header.destination());
    header.set_source(destination);
    header.set_destination(source);
    let at = network + size_of::<F::Header>();
    let delta = if PROBE {
        answer_probe::<P>(packet, at)?
    } else {
        // To the port of tunnels again.
        let gue: &mut KeyedGue = packet.header_mut(at + UDP)?;
        let before = u16::from_be_bytes(gue.flags);
        gue.flags[1] |= KeyedGue::RETURNED;
        Delta::of_port(before, u16::from_be_bytes(gue.flags))
    };
    link::send_back(packet)?;
    let checksum = at + offset_of!(Udp, checksum);
    packet.update_transport_checksum::<F>(checksum, Delta::default(), delta, true)
}

/// Makes a probe, whose UDP header is at `at`, its own reply. It gets another type: a machine that
/// returns everything is no proof.
#[inline(always)]
fn answer_probe<P: Packet>(packet: &mut P, at: usize) -> Option<Delta> {
    let udp: &mut Udp = packet.header_mut(at)?;
    swap(&mut udp.ports.source, &mut udp.ports.destination);
    let has_ability = u16::from_be_bytes(udp.length) as usize == ABILITY + size_of::<u16>();
    let gue: &mut KeyedGue = packet.header_mut(at + UDP)?;
    let before = u16::from_be_bytes([gue.control, gue.protocol]);
    gue.protocol = KeyedGue::PROBE_REPLY;
    let after = u16::from_be_bytes([gue.control, gue.protocol]);
    let delta = Delta::of_port(before, after);
    if !has_ability {
        return Some(delta);
    }
    let Some(ability) = packet.header_mut::<[u8; 2]>(at + ABILITY) else { return Some(delta) };
    let before = u16::from_be_bytes(*ability);
    let after = TunnelPeer::RETURNS as u16;
    *ability = after.to_be_bytes();
    Some(delta.plus(Delta::of_port(before, after)))
}
