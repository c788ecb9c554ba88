//! The link-layer header, of 14, 18 or 22 octets: where it ends, and how it moves when what follows
//! it grows or shrinks.

use super::packet::Packet;
use crate::family::{Family, V4, V6};
use crate::header::{Ethernet, Header, QINQ, VLAN, VlanTag};
use crate::verifier;
use crate::word::number16;

/// The network header's offset, and the EtherType.
pub struct Frame {
    pub ether_type: u16,
    pub network: usize,
}

/// Skips the Ethernet header and up to two VLAN tags.
#[inline(always)]
pub fn parse_frame<P: Packet>(packet: &P) -> Option<Frame> {
    if packet.is_raw() {
        return raw_frame(packet);
    }
    let ethernet: &Ethernet = packet.header(0)?;
    let mut ether_type = number16(&ethernet.ether_type);
    let mut network = size_of::<Ethernet>();
    for _ in 0..2 {
        if ether_type != VLAN && ether_type != QINQ {
            break;
        }
        verifier::rarely();
        let tag: &VlanTag = packet.header(network)?;
        ether_type = number16(&tag.ether_type);
        network += size_of::<VlanTag>();
    }
    Some(Frame { ether_type, network: packet.blur(network) })
}

/// A packet without a link-layer header: the IP version is in its first byte.
#[inline(always)]
fn raw_frame<P: Packet>(packet: &P) -> Option<Frame> {
    let ether_type = match packet.header::<[u8; 2]>(0)?[0] >> 4 {
        4 => V4::ETHER_TYPE,
        6 => V6::ETHER_TYPE,
        _ => return None,
    };
    Some(Frame { ether_type, network: packet.blur(0) })
}

/// Adds an Ethernet header with all addresses 0 to a packet without one.
#[inline(always)]
pub fn add_header<P: Packet>(packet: &mut P) -> Option<()> {
    let ether_type = packet.frame()?.ether_type;
    packet.grow_front(size_of::<Ethernet>())?;
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    *ethernet =
        Ethernet { destination: [0; 6], source: [0; 6], ether_type: ether_type.to_be_bytes() };
    Some(())
}

/// Moves the header from behind new room to the front of it.
#[inline(always)]
pub fn move_to_front<P: Packet>(packet: &mut P, length: usize, room: usize) -> Option<()> {
    *packet.header_mut::<[u8; 14]>(0)? = *packet.header::<[u8; 14]>(room)?;
    for tag in [14, 18] {
        if tag < length {
            *packet.header_mut::<[u8; 4]>(tag)? = *packet.header::<[u8; 4]>(room + tag)?;
        }
    }
    Some(())
}

/// Moves the header behind the bytes that will be removed. The last octets first: they may overlap.
#[inline(always)]
pub fn move_to_back<P: Packet>(packet: &mut P, length: usize, room: usize) -> Option<()> {
    for tag in [18, 14] {
        if tag < length {
            copy_link_address::<[u8; 4], P>(packet, tag, room + tag)?;
        }
    }
    copy_link_address::<[u8; 14], P>(packet, 0, room)
}

#[inline(always)]
fn copy_link_address<H: Header + Copy, P: Packet>(
    packet: &mut P,
    from: usize,
    to: usize,
) -> Option<()> {
    // Each access starts from the packet's start again: a value that the compiler kept from an
    // earlier access would not be a pointer to the verifier.
    verifier::forget_memory();
    let octets = *packet.header::<H>(from)?;
    verifier::forget_memory();
    *packet.header_mut::<H>(to)? = octets;
    Some(())
}

/// Swaps the link-layer addresses, so the packet returns to its sender.
#[inline(always)]
pub fn send_back<P: Packet>(packet: &mut P) -> Option<()> {
    if packet.is_raw() {
        return Some(());
    }
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    core::mem::swap(&mut ethernet.source, &mut ethernet.destination);
    Some(())
}
