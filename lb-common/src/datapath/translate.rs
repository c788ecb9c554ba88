//! Rewriting one end of a packet, with its checksums.

use super::parse::{Network, Place, Segment};
use super::{Direction, FamilyTables, Packet};
use crate::checksum::Delta;
use crate::header::{NetworkHeader, Ports, Tcp, Udp};
use crate::layout::Reason;

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<A> {
    pub address: A,
    pub port: u16,
}

/// What becomes of one end of a packet, and under whose name it is counted.
pub struct Rewrite<F: Network> {
    pub to: End<F::Address>,
    pub service_port: u32,
    pub backend_index: u32,
}

/// Translates a packet and counts it: forward its destination, reverse its source.
#[inline(always)]
pub fn send<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    direction: Direction,
    rewrite: &Rewrite<F>,
) -> Result<(), Reason> {
    let place = segment.place;
    let new = &rewrite.to;
    let bytes = packet.length();

    let network: &mut F::Header = packet.header_mut(place.network).ok_or(Reason::Unwritable)?;
    let old = match direction {
        Direction::Forward => {
            network.set_destination(new.address);
            End { address: segment.destination, port: segment.destination_port }
        }
        Direction::Reverse => {
            network.set_source(new.address);
            End { address: segment.source, port: segment.source_port }
        }
    };
    let address = finish_network::<F>(network, &old, new);

    let ports: &mut Ports = packet.header_mut(place.transport).ok_or(Reason::Unwritable)?;
    match direction {
        Direction::Forward => ports.destination = new.port.to_be_bytes(),
        Direction::Reverse => ports.source = new.port.to_be_bytes(),
    }
    finish_transport(packet, place, address, Delta::of_port(old.port, new.port))?;
    tables.count_packet(rewrite.service_port, rewrite.backend_index, direction, bytes);
    Ok(())
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
