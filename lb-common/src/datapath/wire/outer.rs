//! The outer headers of tunnels between nodes.
//!
//! Any decapsulator understands them. The tag that names the inner packet's backend is in a field
//! that has no other use there: the identification of an IPv4 packet that is never fragmented, or
//! the flow label of IPv6.

use super::made::Answering;
use crate::checksum::Delta;
use crate::family::{V4, V6};
use crate::header::{Ipv4, Ipv6, KeyedGue, Udp};

/// Number of octets between the network headers of a tunnel in UDP, without and with a key.
pub const UDP: usize = size_of::<Udp>();
pub const KEYED: usize = UDP + size_of::<KeyedGue>();

/// An address family whose packets are tunnelled in packets of the same family.
pub trait Outer: Answering {
    /// The traffic class, which includes explicit congestion notification (ECN).
    fn class(header: &Self::Header) -> u8;

    fn set_class(header: &mut Self::Header, class: u8);

    /// The tag that names the backend in an outer header.
    fn tag(header: &Self::Header) -> u16;

    /// Only for a new header, whose tag is 0.
    fn set_tag(header: &mut Self::Header, tag: u16);

    /// Whether the header has this protocol and no options.
    fn is_plain(header: &Self::Header, protocol: u8) -> bool;

    /// Whether the packet of a plain header is no fragment.
    fn is_whole(header: &Self::Header) -> bool;
}

impl Outer for V4 {
    #[inline(always)]
    fn class(header: &Ipv4) -> u8 {
        header.traffic_class
    }

    #[inline(always)]
    fn set_class(header: &mut Ipv4, class: u8) {
        let (before, after) = (u16::from(header.traffic_class), u16::from(class));
        header.traffic_class = class;
        header.checksum = Delta::of_port(before, after).apply(header.checksum);
    }

    #[inline(always)]
    fn tag(header: &Ipv4) -> u16 {
        u16::from_be_bytes(header.identification)
    }

    #[inline(always)]
    fn set_tag(header: &mut Ipv4, tag: u16) {
        header.identification = tag.to_be_bytes();
        header.checksum = Delta::of_port(0, tag).apply(header.checksum);
    }

    #[inline(always)]
    fn is_plain(header: &Ipv4, protocol: u8) -> bool {
        header.version_and_length == 0x45 && header.protocol == protocol
    }

    #[inline(always)]
    fn is_whole(header: &Ipv4) -> bool {
        u16::from_be_bytes(header.flags_and_offset) & 0x3fff == 0
    }
}

impl Outer for V6 {
    #[inline(always)]
    fn class(header: &Ipv6) -> u8 {
        let [a, b, ..] = header.version_and_class;
        a << 4 | b >> 4
    }

    #[inline(always)]
    fn set_class(header: &mut Ipv6, class: u8) {
        let [a, b, ..] = &mut header.version_and_class;
        *a = *a & 0xf0 | class >> 4;
        *b = *b & 0x0f | class << 4;
    }

    #[inline(always)]
    fn tag(header: &Ipv6) -> u16 {
        let [.., c, d] = header.version_and_class;
        u16::from_be_bytes([c, d])
    }

    #[inline(always)]
    fn set_tag(header: &mut Ipv6, tag: u16) {
        let [.., c, d] = &mut header.version_and_class;
        [*c, *d] = tag.to_be_bytes();
    }

    #[inline(always)]
    fn is_plain(header: &Ipv6, protocol: u8) -> bool {
        header.version_and_class[0] >> 4 == 6 && header.next_header == protocol
    }

    /// A fragment has an extension header.
    #[inline(always)]
    fn is_whole(_: &Ipv6) -> bool {
        true
    }
}

/// The ECN field of a traffic class.
const CONGESTION: u8 = 0b11;
const CAPABLE_0: u8 = 0b10;

/// The inner traffic class after the tunnel: congestion in the tunnel is passed on to a transport
/// that supports ECN (RFC 6040, 4.2). `None`: it does not, and the packet must be dropped.
#[inline(always)]
pub fn class_after(inner: u8, outer: u8) -> Option<u8> {
    let met = outer & CONGESTION == CONGESTION;
    match inner & CONGESTION {
        0 if met => None,
        CAPABLE_0 if outer & CONGESTION == 1 => Some(inner & !CONGESTION | 1),
        0 => Some(inner),
        _ if met => Some(inner | CONGESTION),
        _ => Some(inner),
    }
}
