//! Packets of our own making: resets and ICMP errors, written over the packet that they answer.

use super::ingress::drop_for;
use super::parse::{self, Network, Place, Segment};
use super::{FamilyTables, Packet, Stage, Tables, Verdict, link, tcp};
use crate::checksum::Sum;
use crate::family::{Family, V4, V6};
use crate::header::{Ethernet, Icmp, Ipv4, Ipv6, NetworkHeader, Tcp, protocol};
use crate::layout::{Device, Reason};

/// What a packet's sender is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RejectionKind,
    /// What would fit, for those that are too big.
    pub mtu: u32,
}

#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionKind(pub u32);

impl RejectionKind {
    /// Nobody serves the port.
    pub const PORT_UNREACHABLE: Self = Self(0);
    pub const TOO_BIG: Self = Self(1);
    pub const HOP_LIMIT: Self = Self(2);
}

impl Rejection {
    pub const PORT_UNREACHABLE: Self = Self { kind: RejectionKind::PORT_UNREACHABLE, mtu: 0 };
    pub const HOP_LIMIT: Self = Self { kind: RejectionKind::HOP_LIMIT, mtu: 0 };

    #[inline(always)]
    pub fn too_big(mtu: u32) -> Self {
        Self { kind: RejectionKind::TOO_BIG, mtu }
    }
}

/// Has the next stage tell the sender that nobody serves what he dialled, or goes on serving it;
/// counts why.
#[inline(always)]
pub fn unreachable<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    place: Place,
    reason: Reason,
) -> Verdict {
    if !can_answer(packet, tables) {
        return Verdict::Defer;
    }
    tables.count(reason);
    if place.is_tcp() {
        return Verdict::Next(Stage::Reset);
    }
    tables.set_rejection(Rejection::PORT_UNREACHABLE);
    Verdict::Next(Stage::Reject)
}

/// Has the next stage tell the sender why his packet can't be forwarded.
#[inline(always)]
pub fn later<P: Packet, T: Tables>(packet: &P, tables: &T, rejection: Rejection) -> Verdict {
    if !can_answer(packet, tables) {
        return Verdict::Defer;
    }
    let too_big = rejection.kind == RejectionKind::TOO_BIG;
    tables.count(if too_big { Reason::TooBig } else { Reason::HopLimit });
    tables.set_rejection(rejection);
    Verdict::Next(Stage::Reject)
}

/// Whether the hook can send by the device that the packet came in by; else the next hook does.
#[inline(always)]
fn can_answer<P: Packet, T: Tables>(packet: &P, tables: &T) -> bool {
    packet.resolves()
        || tables.device(packet.device()).is_some_and(|known| known.flags & Device::TRANSMIT != 0)
}

/// How a family writes the headers of an answer.
pub trait Answering: Network {
    /// The most that is quoted of a packet: its network header and the start of what follows.
    const QUOTED: usize;

    /// A fresh header without options.
    fn header(
        source: Self::Address,
        destination: Self::Address,
        protocol: u8,
        payload: u16,
    ) -> Self::Header;

    /// Type, code, and the word after the checksum.
    fn error(rejection: Rejection) -> (u8, u8, u32);

    /// Whether an error about a packet from there may be sent there.
    fn is_answerable(source: Self::Address) -> bool;

    /// What the checksum of ICMP begins with.
    fn pseudo_header(source: Self::Address, destination: Self::Address, length: u16) -> Sum;
}

/// The sum of the pseudo header that TCP, UDP and ICMPv6 have.
#[inline(always)]
fn pseudo_header<F: Family>(
    source: F::Address,
    destination: F::Address,
    protocol: u8,
    length: u16,
) -> Sum {
    Sum::default().address(source).address(destination).word(u16::from(protocol)).word(length)
}

impl Answering for V4 {
    const QUOTED: usize = 60 + 8;

    #[inline(always)]
    fn header(
        source: Self::Address,
        destination: Self::Address,
        protocol: u8,
        payload: u16,
    ) -> Ipv4 {
        // What a header says of its length may be as wrong as anything.
        let total_length = payload.wrapping_add(size_of::<Ipv4>() as u16);
        let mut header = Ipv4 {
            version_and_length: 0x45,
            traffic_class: 0,
            total_length: total_length.to_be_bytes(),
            identification: [0; 2],
            // Never to be fragmented.
            flags_and_offset: [0x40, 0],
            time_to_live: 64,
            protocol,
            checksum: [0; 2],
            source: source.octets,
            destination: destination.octets,
        };
        header.checksum = Sum::default()
            .word(0x4500)
            .word(total_length)
            .word(0x4000)
            .word(64 << 8 | u16::from(protocol))
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
    fn is_answerable(source: Self::Address) -> bool {
        let first = source.octets[0];
        // "This" network, loopback, multicast and broadcast are nobody's.
        first != 0 && first != 127 && first < 224
    }

    #[inline(always)]
    fn pseudo_header(_: Self::Address, _: Self::Address, _: u16) -> Sum {
        Sum::default()
    }
}

impl Answering for V6 {
    const QUOTED: usize = 40 + 64 + 8;

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
            hop_limit: 64,
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
    fn is_answerable(source: Self::Address) -> bool {
        source != Self::Address::default() && source.octets[0] != 0xff
    }

    #[inline(always)]
    fn pseudo_header(source: Self::Address, destination: Self::Address, length: u16) -> Sum {
        pseudo_header::<V6>(source, destination, protocol::ICMPV6, length)
    }
}

/// Answers a TCP packet by a reset.
#[inline(never)]
pub fn reset<F: Answering, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let parsed = parse::begun(packet, network);
    let Ok::<Segment<F>, _>(segment) = parsed else {
        return drop_for(tables, Reason::Malformed);
    };
    // A reset is never answered: two sides could go on for ever.
    if segment.tcp_flags & Tcp::RST != 0 || !F::is_answerable(segment.source) {
        return Verdict::Drop;
    }
    if !tables.may_answer() {
        return drop_for(tables, Reason::RateLimited);
    }
    match write_reset(packet, &segment) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

#[inline(always)]
fn write_reset<F: Answering, P: Packet>(packet: &mut P, segment: &Segment<F>) -> Option<()> {
    const LENGTH: u16 = size_of::<Tcp>() as u16;
    let Place { network, transport, .. } = segment.place;
    let end = network + packet.header::<F::Header>(network)?.length() as usize;
    let tcp: &Tcp = packet.header(transport)?;
    let data = (end - transport.min(end)).saturating_sub(usize::from(tcp.data_offset >> 4) * 4);
    let flags = segment.tcp_flags;
    // What the answer to a SYN acknowledges is the SYN; to data, all of it (RFC 9293, 3.10.7.1).
    let (sequence, acknowledgement, flags) = if flags & Tcp::ACK != 0 {
        (tcp.acknowledgement, [0; 4], Tcp::RST)
    } else {
        let control = tcp::length_of_control(flags);
        let next = u32::from_be_bytes(tcp.sequence).wrapping_add(data as u32 + control);
        ([0; 4], next.to_be_bytes(), Tcp::RST | Tcp::ACK)
    };
    let (source, destination) = (segment.destination, segment.source);
    let start = network + size_of::<F::Header>();
    packet.resize((start + size_of::<Tcp>()) as u32)?;

    let header: &mut F::Header = packet.header_mut(network)?;
    *header = F::header(source, destination, protocol::TCP, LENGTH);
    let ports = (segment.destination_port, segment.source_port);
    let checksum = pseudo_header::<F>(source, destination, protocol::TCP, LENGTH)
        .word(ports.0)
        .word(ports.1)
        .octets(sequence)
        .octets(acknowledgement)
        .word(5 << 12 | u16::from(flags))
        .checksum();
    let tcp: &mut Tcp = packet.header_mut(start)?;
    tcp.ports.source = ports.0.to_be_bytes();
    tcp.ports.destination = ports.1.to_be_bytes();
    tcp.sequence = sequence;
    tcp.acknowledgement = acknowledgement;
    tcp.data_offset = 5 << 4;
    tcp.flags = flags;
    tcp.window = [0; 2];
    tcp.checksum = checksum;
    tcp.urgent = [0; 2];
    send_back(packet)
}

/// The packet leaves to whom it came from.
#[inline(always)]
fn send_back<P: Packet>(packet: &mut P) -> Option<()> {
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    core::mem::swap(&mut ethernet.source, &mut ethernet.destination);
    Some(())
}

/// Answers a packet by an ICMP error that quotes its start.
#[inline(never)]
pub fn reject<F: Answering, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Ok(place) = parse::beginning::<F, P>(packet, network) else {
        return drop_for(tables, Reason::Malformed);
    };
    let Some(header) = packet.header::<F::Header>(network) else {
        return drop_for(tables, Reason::Malformed);
    };
    let (source, destination) = (header.destination(), header.source());
    if !F::is_answerable(destination) {
        return Verdict::Drop;
    }
    if !tables.may_answer() {
        return drop_for(tables, Reason::RateLimited);
    }
    let error = F::error(tables.rejection());
    match write_error::<F, P>(packet, place, source, destination, error) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

#[inline(always)]
fn write_error<F: Answering, P: Packet>(
    packet: &mut P,
    place: Place,
    source: F::Address,
    destination: F::Address,
    (kind, code, rest): (u8, u8, u32),
) -> Option<()> {
    let added = size_of::<F::Header>() + size_of::<Icmp>();
    // Of what follows the network header, the eight octets with the ports.
    let quoted = (place.transport - place.network + 8).min(F::QUOTED) & !3;
    packet.grow_front(added)?;
    link::move_to_front(packet, place.network, added)?;
    let outer = place.network;
    let icmp = outer + size_of::<F::Header>();
    packet.resize((outer + added + quoted) as u32)?;

    let length = (size_of::<Icmp>() + quoted) as u16;
    *packet.header_mut::<F::Header>(outer)? = F::header(source, destination, F::ICMP, length);
    let rest = rest.to_be_bytes();
    let mut sum = F::pseudo_header(source, destination, length)
        .word(u16::from(kind) << 8 | u16::from(code))
        .octets(rest);
    for word in 0..F::QUOTED / 4 {
        if word * 4 >= quoted {
            break;
        }
        sum = sum.octets(*packet.header::<[u8; 4]>(icmp + size_of::<Icmp>() + word * 4)?);
    }
    // Else the compiler derives it from where the sum ended, which the verifier can't follow.
    let icmp = packet.blur(icmp);
    let header: &mut Icmp = packet.header_mut(icmp)?;
    *header = Icmp { kind, code, checksum: sum.checksum(), rest };
    send_back(packet)
}
