//! Finds and reads headers. It checks only the form of packets.

use super::packet::Packet;
use crate::branchless::{choose, is_zero};
use crate::conntrack::Signal;
use crate::datapath::segment::{Headers, Segment};
use crate::family::{Family, V4, V6};
use crate::header::{
    Extension, FragmentHeader, Ipv4, Ipv6, LINK_HOP_LIMIT, NetworkHeader, Sctp, SctpChunk, Tcp,
    Udp, protocol,
};
use crate::layout::Reason;
use crate::verifier::rarely;
use crate::word::{number16, number32};

/// Maximum number of IPv6 extension headers: hop-by-hop, destination options, routing and again
/// destination options.
const MAX_EXTENSIONS: usize = 4;

/// Whether a packet is a fragment, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// The first fragment: it has the transport header.
    First,
    Later,
    /// The header could not be read.
    Malformed,
}

/// Where the transport header is, or would be in a later fragment.
///
/// Not in a `Result`, so that every field has a value: the verifier has difficulties with fields
/// that only some variants have.
pub struct Transport {
    pub headers: Headers,
    pub part: Part,
    /// What fragments of one packet have in common.
    pub identification: u32,
    pub protocol: u8,
}

/// What a packet is.
pub enum Parsed<F: Family> {
    /// One with ports.
    Segment(Segment<F>),
    /// A fragment, or what the stages of fragments handle, too.
    Fragment,
    /// ICMP of its family, possibly an error about another packet.
    Icmp,
    /// A packet of the same family inside another one, possibly a tunnel.
    Tunnel,
    /// A protocol that Services do not support.
    Other,
    Malformed,
}

impl<F: Family> Parsed<F> {
    /// The reason for a packet that no stage handles.
    #[inline(always)]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Fragment => Reason::Fragment,
            Self::Malformed => Reason::Malformed,
            Self::Segment(_) | Self::Icmp | Self::Tunnel | Self::Other => Reason::UnknownProtocol,
        }
    }
}

impl Transport {
    const MALFORMED: Self = Self {
        headers: Headers { network: 0, transport: 0, protocol: 0 },
        part: Part::Malformed,
        identification: 0,
        protocol: 0,
    };
    const FRAGMENT: Self = Self { part: Part::Later, ..Self::MALFORMED };
}

/// How a family's packets are parsed.
pub trait PacketFamily: Family {
    /// The protocol number of ICMP.
    const ICMP: u8;

    /// The protocol number of this family's packets inside another packet.
    const IN_IP: u8;

    /// The length of packets that every link and route carries.
    const LEAST_MTU: u32;

    /// Whether an ICMP packet of this type is an error that quotes another packet.
    fn is_error(kind: u8) -> bool;

    /// Whether a packet may be one of neighbour discovery, by its header.
    fn is_neighbours(header: &Self::Header) -> bool;

    /// Without `FRAGMENTS` every fragment is reported as a later one, without details.
    fn transport<const FRAGMENTS: bool, P: Packet>(packet: &P, network: usize) -> Transport;
}

impl PacketFamily for V4 {
    const ICMP: u8 = protocol::ICMP;
    const IN_IP: u8 = protocol::IPIP;
    // RFC 791 says 68; no network sets less than what every host has to receive.
    const LEAST_MTU: u32 = 576;

    /// Unreachable, source quench, time exceeded, parameter problem.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 4 | 11 | 12)
    }

    /// IPv4 has ARP.
    #[inline(always)]
    fn is_neighbours(_: &Ipv4) -> bool {
        false
    }

    #[inline(always)]
    fn transport<const FRAGMENTS: bool, P: Packet>(packet: &P, network: usize) -> Transport {
        const MORE_FOLLOW: u16 = 0x2000;
        const OFFSET: u16 = 0x1fff;

        let Some(header) = packet.header::<Ipv4>(network) else {
            return Transport::MALFORMED;
        };
        let length = usize::from(header.version_and_length & 0x0f) * 4;
        if header.version_and_length >> 4 != 4 || length < size_of::<Ipv4>() {
            return Transport::MALFORMED;
        }
        let fragment = number16(&header.flags_and_offset) & (MORE_FOLLOW | OFFSET);
        if !FRAGMENTS && fragment != 0 {
            return Transport::FRAGMENT;
        }
        Transport {
            headers: Headers { network, transport: network + length, protocol: header.protocol },
            part: match fragment {
                0 => Part::Whole,
                MORE_FOLLOW => Part::First,
                _ => Part::Later,
            },
            identification: u32::from(number16(&header.identification)),
            protocol: header.protocol,
        }
    }
}

impl PacketFamily for V6 {
    const ICMP: u8 = protocol::ICMPV6;
    const IN_IP: u8 = protocol::IPV6;
    const LEAST_MTU: u32 = 1280;

    /// Unreachable, packet too big, time exceeded, parameter problem.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }

    #[inline(always)]
    fn is_neighbours(header: &Ipv6) -> bool {
        header.next_header == protocol::ICMPV6 && header.hop_limit == LINK_HOP_LIMIT
    }

    #[inline(always)]
    fn transport<const FRAGMENTS: bool, P: Packet>(packet: &P, network: usize) -> Transport {
        let Some(header) = packet.header::<Ipv6>(network) else {
            return Transport::MALFORMED;
        };
        if header.version_and_class[0] >> 4 != 6 {
            return Transport::MALFORMED;
        }
        let mut protocol = header.next_header;
        let mut transport = network + size_of::<Ipv6>();
        let (mut part, mut identification, mut part_of) = (Part::Whole, 0, protocol);
        for _ in 0..MAX_EXTENSIONS {
            match protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                    rarely();
                    let Some(extension) = packet.header::<Extension>(transport) else {
                        return Transport::MALFORMED;
                    };
                    protocol = extension.next_header;
                    transport += (usize::from(extension.length) + 1) * 8;
                }
                protocol::FRAGMENT if FRAGMENTS => {
                    rarely();
                    let Some(fragment) = packet.header::<FragmentHeader>(transport) else {
                        return Transport::MALFORMED;
                    };
                    part = fragment.part();
                    identification = number32(&fragment.identification);
                    protocol = fragment.next_header;
                    part_of = protocol;
                    transport += size_of::<FragmentHeader>();
                    if part == Part::Later {
                        break;
                    }
                }
                protocol::FRAGMENT => return Transport::FRAGMENT,
                _ => break,
            }
        }
        Transport {
            // At most four headers of 2 KiB.
            headers: Headers { network, transport: packet.blur(transport), protocol },
            part,
            identification,
            protocol: part_of,
        }
    }
}

impl FragmentHeader {
    /// An atomic fragment counts as a whole packet (RFC 6946).
    #[inline(always)]
    fn part(&self) -> Part {
        match number16(&self.offset_and_more) & 0xfff9 {
            0 => Part::Whole,
            1 => Part::First,
            _ => Part::Later,
        }
    }
}

/// Parses a whole packet of TCP or UDP. SCTP is rare: it takes the stages of fragments, which handle whole packets, too.
#[inline(always)]
pub fn parse_frequent_packet<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> Parsed<F> {
    let found = F::transport::<false, P>(packet, network);
    match found.part {
        Part::Whole if found.headers.is_sctp() => {
            rarely();
            Parsed::Fragment
        }
        Part::Whole => segment_of_packet(packet, found.headers),
        Part::Malformed => Parsed::Malformed,
        Part::First | Part::Later => Parsed::Fragment,
    }
}

/// Where the transport header of a whole packet is.
#[inline(always)]
pub fn transport<F: PacketFamily, P: Packet>(
    packet: &P,
    network: usize,
) -> Result<Headers, Reason> {
    let found = F::transport::<false, P>(packet, network);
    match found.part {
        Part::Whole => Ok(found.headers),
        Part::Malformed => Err(Reason::Malformed),
        Part::First | Part::Later => Err(Reason::Fragment),
    }
}

/// Where the transport header of a packet is that is whole, or a first fragment whose ports are already stored
/// for the later ones.
#[inline(always)]
pub fn whole_or_first_headers<F: PacketFamily, P: Packet>(
    packet: &P,
    network: usize,
) -> Result<Headers, Reason> {
    let found = F::transport::<true, P>(packet, network);
    match found.part {
        Part::Whole | Part::First => Ok(found.headers),
        Part::Malformed => Err(Reason::Malformed),
        Part::Later => Err(Reason::Fragment),
    }
}

/// Parses a packet that is whole, or a first fragment whose ports are already stored for the later ones.
#[inline(always)]
pub fn parse_whole_or_first<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> Parsed<F> {
    let found = F::transport::<true, P>(packet, network);
    match found.part {
        Part::Whole | Part::First => segment_of_packet(packet, found.headers),
        Part::Malformed => Parsed::Malformed,
        Part::Later => Parsed::Fragment,
    }
}

/// Reads addresses, ports and signal of the packet.
#[inline(always)]
pub fn segment_of_packet<F: PacketFamily, P: Packet>(packet: &P, headers: Headers) -> Parsed<F> {
    let Some(network) = packet.header::<F::Header>(headers.network) else {
        return Parsed::Malformed;
    };
    let (source, destination) = (network.source(), network.destination());
    let (ports, signal) = match headers.protocol {
        protocol::TCP => {
            let Some(tcp) = packet.header::<Tcp>(headers.transport) else {
                return Parsed::Malformed;
            };
            let sequence = number32(&tcp.sequence);
            let acknowledgement = number32(&tcp.acknowledgement);
            (&tcp.ports, Signal { flags: tcp.flags, sequence, acknowledgement })
        }
        protocol::UDP => {
            let Some(udp) = packet.header::<Udp>(headers.transport) else {
                return Parsed::Malformed;
            };
            (&udp.ports, Signal::default())
        }
        protocol::SCTP => {
            rarely();
            let Some(sctp) = packet.header::<Sctp>(headers.transport) else {
                return Parsed::Malformed;
            };
            let Some(signal) = signal_of_chunk(packet, headers.transport, sctp) else {
                return Parsed::Malformed;
            };
            (&sctp.ports, signal)
        }
        protocol if protocol == F::ICMP => return Parsed::Icmp,
        protocol if protocol == F::IN_IP => return Parsed::Tunnel,
        _ => return Parsed::Other,
    };
    let segment = Segment {
        headers,
        source,
        destination,
        source_port: number16(&ports.source),
        destination_port: number16(&ports.destination),
        signal,
    };
    Parsed::Segment(segment.blur())
}

/// An SCTP packet in TCP's terms: its verification tag takes the place of the acknowledgement
/// number, and the initiate tag of an INIT-ACK the place of the sequence number.
#[inline(always)]
fn signal_of_chunk<P: Packet>(packet: &P, transport: usize, sctp: &Sctp) -> Option<Signal> {
    let chunk = transport + size_of::<Sctp>();
    let kind =
        if packet.is_in_pieces() { Sctp::DATA } else { packet.header::<SctpChunk>(chunk)?.kind };
    let mut sequence = 0;
    if kind == Sctp::INIT_ACK
        && let Some(tag) = packet.header::<[u8; 4]>(chunk + size_of::<SctpChunk>())
    {
        sequence = number32(tag).wrapping_sub(1);
    }
    let acknowledgement = number32(&sctp.verification_tag);
    Some(Signal { flags: flags_of_chunk(kind), sequence, acknowledgement })
}

/// The TCP flags that correspond to an SCTP packet's first chunk. Chunks that begin or end an
/// association are the first in their packets, except for an ABORT behind other control chunks.
#[inline(always)]
fn flags_of_chunk(kind: u8) -> u8 {
    const fn bit(kind: u8) -> u64 {
        1 << kind
    }
    const SYN: u64 = bit(Sctp::INIT) | bit(Sctp::INIT_ACK);
    const ACK: u64 = bit(Sctp::INIT_ACK);
    const FIN: u64 = bit(Sctp::SHUTDOWN) | bit(Sctp::SHUTDOWN_ACK);
    const RST: u64 = bit(Sctp::ABORT) | bit(Sctp::SHUTDOWN_COMPLETE);

    let kind = u64::from(kind);
    let has = |kinds: u64, flag: u8| (kinds >> (kind & 31) & 1) * u64::from(flag);
    let flags = has(SYN, Tcp::SYN) | has(ACK, Tcp::ACK) | has(FIN, Tcp::FIN) | has(RST, Tcp::RST);
    choose(is_zero(kind >> 5), flags, 0) as u8
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn only_chunks_that_begin_or_end_an_association_have_flags() {
        let flags: Vec<(u8, u8)> = (0..=u8::MAX)
            .map(|kind| (kind, flags_of_chunk(kind)))
            .filter(|(_, flags)| *flags != 0)
            .collect();
        let (syn, ack, fin, rst) = (Tcp::SYN, Tcp::ACK, Tcp::FIN, Tcp::RST);
        let expected = [(1, syn), (2, syn | ack), (6, rst), (7, fin), (8, fin), (14, rst)];
        assert_eq!(flags, expected);
    }
}
