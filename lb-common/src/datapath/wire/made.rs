//! Headers of generated packets: resets, ICMP errors, and tunnels.

use super::parse::PacketFamily;
use crate::checksum::Sum;
use crate::datapath::rejection::{Rejection, RejectionKind};
use crate::family::{Family, V4, V6};
use crate::header::{Ipv4, Ipv6, protocol};

/// TTL or hop limit of generated packets.
pub const HOP_LIMIT: u8 = 64;

/// How a family writes headers.
pub trait Answering: PacketFamily {
    /// Maximum quote of a packet: its network header and the start of what follows.
    const QUOTED: usize;

    /// ICMP's type of a request to be answered, and that of the answer.
    const ECHO_REQUEST: u8;
    const ECHO_REPLY: u8;

    /// A fresh header without options.
    fn header(
        source: Self::Address,
        destination: Self::Address,
        protocol: u8,
        payload: u16,
    ) -> Self::Header;

    /// Type, code, and the word after the checksum.
    fn error(rejection: Rejection) -> (u8, u8, u32);

    /// Whether an ICMP error, or another answer, may be sent to this source address.
    fn may_receive_errors(source: Self::Address) -> bool;

    /// The start of ICMP's checksum.
    fn pseudo_header(source: Self::Address, destination: Self::Address, length: u16) -> Sum;
}

/// The sum of the pseudo header that TCP, UDP and ICMPv6 have.
#[inline(always)]
pub fn pseudo_header<F: Family>(
    source: F::Address,
    destination: F::Address,
    protocol: u8,
    length: u16,
) -> Sum {
    Sum::default().address(source).address(destination).word(u16::from(protocol)).word(length)
}

impl Answering for V4 {
    const QUOTED: usize = 60 + 8;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;

    #[inline(always)]
    fn header(
        source: Self::Address,
        destination: Self::Address,
        protocol: u8,
        payload: u16,
    ) -> Ipv4 {
        // Wraps: the length in a received header may have any value.
        let total_length = payload.wrapping_add(size_of::<Ipv4>() as u16);
        let mut header = Ipv4 {
            version_and_length: 0x45,
            traffic_class: 0,
            total_length: total_length.to_be_bytes(),
            identification: [0; 2],
            // Don't fragment.
            flags_and_offset: [0x40, 0],
            time_to_live: HOP_LIMIT,
            protocol,
            checksum: [0; 2],
            source: source.octets,
            destination: destination.octets,
        };
        header.checksum = Sum::default()
            .word(0x4500)
            .word(total_length)
            .word(0x4000)
            .word(u16::from(HOP_LIMIT) << 8 | u16::from(protocol))
            .address(source)
            .address(destination)
            .checksum();
        header
    }

    #[inline(always)]
    fn error(rejection: Rejection) -> (u8, u8, u32) {
        match rejection.kind {
            RejectionKind::TOO_BIG => (3, 4, rejection.mtu & 0xffff),
            RejectionKind::HOP_LIMIT => (11, 0, 0),
            _ => (3, 3, 0),
        }
    }

    #[inline(always)]
    fn may_receive_errors(source: Self::Address) -> bool {
        let first = source.octets[0];
        // "This" network, loopback, multicast and broadcast are not addresses of a host.
        first != 0 && first != 127 && first < 224
    }

    #[inline(always)]
    fn pseudo_header(_: Self::Address, _: Self::Address, _: u16) -> Sum {
        Sum::default()
    }
}

impl Answering for V6 {
    const QUOTED: usize = 40 + 64 + 8;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;

    #[inline(always)]
    fn header(
        source: Self::Address,
        destination: Self::Address,
        protocol: u8,
        payload: u16,
    ) -> Ipv6 {
        Ipv6 {
            version_and_class: [0x60, 0, 0, 0],
            payload_length: payload.to_be_bytes(),
            next_header: protocol,
            hop_limit: HOP_LIMIT,
            source: source.octets,
            destination: destination.octets,
        }
    }

    #[inline(always)]
    fn error(rejection: Rejection) -> (u8, u8, u32) {
        match rejection.kind {
            RejectionKind::TOO_BIG => (2, 0, rejection.mtu),
            RejectionKind::HOP_LIMIT => (3, 0, 0),
            _ => (1, 4, 0),
        }
    }

    #[inline(always)]
    fn may_receive_errors(source: Self::Address) -> bool {
        source != Self::Address::default() && source.octets[0] != 0xff
    }

    #[inline(always)]
    fn pseudo_header(source: Self::Address, destination: Self::Address, length: u16) -> Sum {
        pseudo_header::<V6>(source, destination, protocol::ICMPV6, length)
    }
}
