//! Writing a decision's addresses and ports into a packet, with its checksums.

use crate::checksum::Delta;
use crate::crc32c;
use crate::datapath::carried::Decision;
use crate::datapath::segment::{Headers, Segment};
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;
use crate::header::{NetworkHeader, Sctp, Tcp, TransportPorts, Udp};
use crate::layout::Reason;
use crate::verifier::rarely;
use crate::word::set_number16;

/// Translates a packet and counts it.
#[inline(always)]
pub fn rewrite_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Result<(), Reason> {
    let headers = segment.headers;
    let Decision { source, destination, .. } = decision;
    let bytes = translated_length::<F, P>(packet, headers)?;

    let address = rewrite_addresses(packet, segment, decision)?;
    let ports: &mut TransportPorts =
        packet.header_mut(headers.transport).ok_or(Reason::Unwritable)?;
    set_number16(&mut ports.source, source.port);
    set_number16(&mut ports.destination, destination.port);
    if headers.is_sctp() {
        rarely();
        finish_sctp::<F, P>(packet, segment, decision)?;
        count_translated(tables, decision, bytes);
        return Ok(());
    }
    let port = Delta::of_port(segment.source_port, source.port)
        .plus(Delta::of_port(segment.destination_port, destination.port));
    finish_transport::<F, P>(packet, headers, address, port)?;
    count_translated(tables, decision, bytes);
    Ok(())
}

/// Translates a later fragment and counts it.
#[inline(always)]
pub fn rewrite_later_fragment<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Result<(), Reason> {
    let bytes = translated_length::<F, P>(packet, segment.headers)?;
    rewrite_addresses(packet, segment, decision)?;
    count_translated(tables, decision, bytes);
    Ok(())
}

#[inline(always)]
fn count_translated<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    decision: &Decision<F>,
    bytes: u32,
) {
    let Decision { service_port, backend_index, direction, .. } = *decision;
    tables.count_packet(service_port, backend_index, direction, bytes);
}

#[inline(always)]
fn translated_length<F: PacketFamily, P: Packet>(
    packet: &P,
    headers: Headers,
) -> Result<u32, Reason> {
    let header: &F::Header = packet.header(headers.network).ok_or(Reason::Unwritable)?;
    Ok(packet.length_if(headers.network as u32 + header.length()))
}

/// Translates the addresses, which every fragment has; returns the differences for checksums.
#[inline(always)]
pub fn rewrite_addresses<F: PacketFamily, P: Packet>(
    packet: &mut P,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Result<Delta, Reason> {
    let Decision { source, destination, .. } = decision;
    let network: &mut F::Header =
        packet.header_mut(segment.headers.network).ok_or(Reason::Unwritable)?;
    network.set_source(source.address);
    network.set_destination(destination.address);
    let change = Delta::of_address(segment.source, source.address)
        .plus(Delta::of_address(segment.destination, destination.address));
    if let Some(checksum) = network.checksum_mut() {
        change.update(checksum);
    }
    Ok(change)
}

/// SCTP's checksum does not cover addresses. A field of zeros is completed by the sending device.
#[inline(always)]
fn finish_sctp<F: PacketFamily, P: Packet>(
    packet: &mut P,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Result<(), Reason> {
    let Headers { network, transport, .. } = segment.headers;
    let [a, b] = (segment.source_port ^ decision.source.port).to_be_bytes();
    let [c, d] = (segment.destination_port ^ decision.destination.port).to_be_bytes();
    let change = [a, b, c, d];
    if change == [0; 4] {
        return Ok(());
    }
    let header: &F::Header = packet.header(network).ok_or(Reason::Unwritable)?;
    // Not to the end of the frame: Ethernet pads short packets.
    let length = header.length().wrapping_sub((transport - network) as u32);
    let change = crc32c::of_change(change, length as u16);
    let sctp: &mut Sctp = packet.header_mut(transport).ok_or(Reason::Unwritable)?;
    let checksum = u32::from_le_bytes(sctp.checksum);
    if checksum != 0 {
        sctp.checksum = (checksum ^ change).to_le_bytes();
    }
    Ok(())
}

/// Last of all: updating a checksum may invalidate every view of the packet.
#[inline(always)]
fn finish_transport<F: PacketFamily, P: Packet>(
    packet: &mut P,
    headers: Headers,
    address: Delta,
    port: Delta,
) -> Result<(), Reason> {
    use core::mem::offset_of;

    let (field, optional) = if headers.is_tcp() {
        (offset_of!(Tcp, checksum), false)
    } else {
        (offset_of!(Udp, checksum), true)
    };
    packet
        .update_transport_checksum::<F>(headers.transport + field, address, port, optional)
        .ok_or(Reason::Unwritable)
}
