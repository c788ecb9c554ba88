//! ARP for IPv4 on Ethernet (RFC 826), and how hosts claim and defend addresses by it (RFC 5227).

use super::packet::Packet;
use crate::family::{Address4, Family, V4};
use crate::header::{Arp, Ethernet};

/// In host order.
pub const ETHER_TYPE: u16 = 0x0806;

/// A link-layer address.
pub type LinkAddress = [u8; 6];

pub const BROADCAST: LinkAddress = [0xff; 6];

const ETHERNET: u16 = 1;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// Whether an address can be that of one interface: neither a group nor unset.
#[inline(always)]
pub fn is_single(address: LinkAddress) -> bool {
    address[0] & 1 == 0 && address != [0; 6]
}

/// A valid request or reply.
pub struct Message {
    pub is_request: bool,
    pub sender_link: LinkAddress,
    /// Unspecified in a probe.
    pub sender: Address4,
    pub target: Address4,
}

impl Message {
    /// Whether the sender announces that it uses an address, instead of asking for another one.
    #[inline(always)]
    pub fn is_gratuitous(&self) -> bool {
        self.sender == self.target
    }
}

/// Reads the message at `network`.
#[inline(always)]
pub fn read_arp<P: Packet>(packet: &P, network: usize) -> Option<Message> {
    let arp: &Arp = packet.header(network)?;
    let operation = u16::from_be_bytes(arp.operation);
    let is_known = u16::from_be_bytes(arp.hardware) == ETHERNET
        && u16::from_be_bytes(arp.protocol) == V4::ETHER_TYPE
        && arp.hardware_length == 6
        && arp.protocol_length == 4
        && (operation == REQUEST || operation == REPLY);
    if !is_known || !is_single(arp.sender_hardware) {
        return None;
    }
    Some(Message {
        is_request: operation == REQUEST,
        sender_link: arp.sender_hardware,
        sender: arp.sender(),
        target: arp.target(),
    })
}

/// Turns a request into the reply that its sender gets from `own`, without what follows it.
#[inline(always)]
pub fn write_arp_reply<P: Packet>(packet: &mut P, network: usize, own: LinkAddress) -> Option<()> {
    let end = (network + size_of::<Arp>()) as u32;
    if packet.length() != end {
        packet.resize(end)?;
    }
    let arp: &mut Arp = packet.header_mut(network)?;
    let (link, sender, target) = (arp.sender_hardware, arp.sender(), arp.target());
    arp.operation = REPLY.to_be_bytes();
    arp.sender_hardware = own;
    arp.set_sender(target);
    arp.target_hardware = link;
    arp.set_target(sender);
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    ethernet.destination = ethernet.source;
    ethernet.source = own;
    Some(())
}

/// A frame with a message, without VLAN tags.
#[repr(C)]
struct Framed {
    ethernet: Ethernet,
    arp: Arp,
}

/// Length of a frame with a message.
pub const FRAME: usize = size_of::<Framed>();
const _: () = assert!(FRAME == 42);

/// An announcement: the request or the reply by which a host says that an address is its own. Some
/// hosts heed only one of the two.
pub fn arp_announcement(own: LinkAddress, address: Address4, request: bool) -> [u8; FRAME] {
    let operation = if request { REQUEST } else { REPLY };
    let target = if request { [0; 6] } else { BROADCAST };
    frame_arp(BROADCAST, operation, (own, address), (target, address))
}

/// A probe: asks who uses an address, without claiming it. To all hosts, or to one of them.
pub fn arp_probe(own: LinkAddress, address: Address4, to: LinkAddress) -> [u8; FRAME] {
    frame_arp(to, REQUEST, (own, Address4::default()), ([0; 6], address))
}

fn frame_arp(
    to: LinkAddress,
    operation: u16,
    sender: (LinkAddress, Address4),
    target: (LinkAddress, Address4),
) -> [u8; FRAME] {
    let framed = Framed {
        ethernet: Ethernet {
            destination: to,
            source: sender.0,
            ether_type: ETHER_TYPE.to_be_bytes(),
        },
        arp: Arp {
            hardware: ETHERNET.to_be_bytes(),
            protocol: V4::ETHER_TYPE.to_be_bytes(),
            hardware_length: 6,
            protocol_length: 4,
            operation: operation.to_be_bytes(),
            sender_hardware: sender.0,
            sender_protocol: sender.1.octets,
            target_hardware: target.0,
            target_protocol: target.1.octets,
        },
    };
    // SAFETY: headers of octets without padding, as many as asserted.
    unsafe { core::mem::transmute(framed) }
}
