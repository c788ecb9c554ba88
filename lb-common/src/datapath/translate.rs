//! Rewriting one end of a packet, with its checksums.

use super::Packet;
use super::parse::{Network, Place};
use crate::checksum::Delta;
use crate::header::{NetworkHeader, Ports, Tcp, Udp};
use crate::layout::Reason;

/// An address and a port.
pub struct End<A> {
    pub address: A,
    pub port: u16,
}

#[inline(always)]
pub fn destination<F: Network, P: Packet>(
    packet: &mut P,
    place: Place,
    old: &End<F::Address>,
    new: &End<F::Address>,
) -> Result<(), Reason> {
    let network: &mut F::Header = packet.header_mut(place.network).ok_or(Reason::Unwritable)?;
    network.set_destination(new.address);
    let address = finish_network::<F>(network, old, new);

    let ports: &mut Ports = packet.header_mut(place.transport).ok_or(Reason::Unwritable)?;
    ports.destination = new.port.to_be_bytes();
    finish_transport(packet, place, address, Delta::of_port(old.port, new.port))
}

#[inline(always)]
pub fn source<F: Network, P: Packet>(
    packet: &mut P,
    place: Place,
    old: &End<F::Address>,
    new: &End<F::Address>,
) -> Result<(), Reason> {
    let network: &mut F::Header = packet.header_mut(place.network).ok_or(Reason::Unwritable)?;
    network.set_source(new.address);
    let address = finish_network::<F>(network, old, new);

    let ports: &mut Ports = packet.header_mut(place.transport).ok_or(Reason::Unwritable)?;
    ports.source = new.port.to_be_bytes();
    finish_transport(packet, place, address, Delta::of_port(old.port, new.port))
}

#[inline(always)]
fn finish_network<F: Network>(
    network: &mut F::Header,
    old: &End<F::Address>,
    new: &End<F::Address>,
) -> Delta {
    let delta = Delta::of_address(old.address, new.address);
    if let Some(checksum) = network.checksum_mut() {
        *checksum = delta.apply(*checksum);
    }
    delta
}

/// Last of all: updating a checksum may invalidate every view of the packet.
#[inline(always)]
fn finish_transport<P: Packet>(
    packet: &mut P,
    place: Place,
    address: Delta,
    port: Delta,
) -> Result<(), Reason> {
    use core::mem::offset_of;

    let (field, optional) = if place.is_tcp() {
        (offset_of!(Tcp, checksum), false)
    } else {
        (offset_of!(Udp, checksum), true)
    };
    packet
        .update_transport_checksum(place.transport + field, address, port, optional)
        .ok_or(Reason::Unwritable)
}
