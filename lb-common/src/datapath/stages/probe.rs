//! Probes by which a node learns that another one takes packets out of tunnels: the other one's
//! data plane sends them back.
//!
//! A probe is a control message of Generic UDP Encapsulation with the cluster's key. It comes to the
//! same place as a tunnelled packet, so whatever stops one stops the other, too.

use core::mem::{offset_of, swap};

use super::reject;
use crate::checksum::Delta;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::outer::{Outer, UDP};
use crate::datapath::wire::packet::Packet;
use crate::header::{KeyedGue, NetworkHeader, Udp};
use crate::layout::{Device, Reason};

/// Returns a probe to its sender, with another type: a machine that returns everything is no proof.
#[inline(never)]
pub fn reflect<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    packet.leave_by(0);
    let can_send = packet.resolves()
        || tables.device(packet.device()).is_some_and(|it| it.flags & Device::TRANSMIT != 0);
    if !can_send {
        return Verdict::Defer;
    }
    if !tables.may_reject() {
        return drop_for(tables, Reason::RateLimited);
    }
    match turn_round::<F, P>(packet, network) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

#[inline(always)]
fn turn_round<F: Outer, P: Packet>(packet: &mut P, network: usize) -> Option<()> {
    let header: &mut F::Header = packet.header_mut(network)?;
    // Neither these nor the ports change a sum.
    let (source, destination) = (header.source(), header.destination());
    header.set_source(destination);
    header.set_destination(source);
    let at = network + size_of::<F::Header>();
    let udp: &mut Udp = packet.header_mut(at)?;
    swap(&mut udp.ports.source, &mut udp.ports.destination);
    let gue: &mut KeyedGue = packet.header_mut(at + UDP)?;
    let before = u16::from_be_bytes([gue.control, gue.protocol]);
    gue.protocol = KeyedGue::PROBE_REPLY;
    let after = u16::from_be_bytes([gue.control, gue.protocol]);
    reject::send_back(packet)?;
    let checksum = at + offset_of!(Udp, checksum);
    let delta = Delta::of_port(before, after);
    packet.update_transport_checksum::<F>(checksum, Delta::default(), delta, true)
}
