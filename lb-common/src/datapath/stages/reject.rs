//! Generated packets: resets and ICMP errors. They overwrite the packet that caused them.

use crate::datapath::rejection::Rejection;
use crate::datapath::segment::{Headers, Segment};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::link;
use crate::datapath::wire::made::{Answering, pseudo_header};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, Parsed};
use crate::header::{Icmp, NetworkHeader, Tcp, protocol};
use crate::layout::Reason;

/// Rejects a TCP packet with a reset.
#[inline(never)]
pub fn reject_with_reset<F: Answering, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Parsed::Segment::<F>(segment) = parse::parse_whole_or_first(packet, network) else {
        return drop_for(tables, Reason::Malformed);
    };
    // A reset never causes a reset, or two hosts could do so for ever.
    if segment.signal.flags & Tcp::RST != 0 || !F::may_receive_errors(segment.source) {
        return Verdict::Drop;
    }
    if !tables.may_reject() {
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
    let Headers { network, transport, .. } = segment.headers;
    let end = network + packet.header::<F::Header>(network)?.length() as usize;
    let tcp: &Tcp = packet.header(transport)?;
    let data = (end - transport.min(end)).saturating_sub(usize::from(tcp.data_offset >> 4) * 4);
    let flags = segment.signal.flags;
    // The reset acknowledges the SYN, or all data (RFC 9293, 3.10.7.1).
    let (sequence, acknowledgement, flags) = if flags & Tcp::ACK != 0 {
        (tcp.acknowledgement, [0; 4], Tcp::RST)
    } else {
        let control = length_of_control(flags);
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
    link::send_back(packet)
}

/// The number of sequence numbers that the flags use.
#[inline(always)]
fn length_of_control(flags: u8) -> u32 {
    u32::from(flags & Tcp::SYN != 0) + u32::from(flags & Tcp::FIN != 0)
}

/// Rejects a packet with an ICMP error that quotes its start. `rejection` is read when it is written, so that
/// the verifier follows the rest for any error at once.
#[inline(never)]
pub fn reject_with_icmp<F: Answering, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    rejection: impl FnOnce() -> Rejection,
) -> Verdict {
    let Ok(headers) = parse::whole_or_first_headers::<F, P>(packet, network) else {
        return drop_for(tables, Reason::Malformed);
    };
    let Some(header) = packet.header::<F::Header>(network) else {
        return drop_for(tables, Reason::Malformed);
    };
    let (source, destination) = (header.destination(), header.source());
    if !F::may_receive_errors(destination) {
        return Verdict::Drop;
    }
    if !tables.may_reject() {
        return drop_for(tables, Reason::RateLimited);
    }
    let error = F::error(rejection());
    match write_error::<F, P>(packet, headers, source, destination, error) {
        Some(()) => Verdict::Transmit,
        None => drop_for(tables, Reason::Unwritable),
    }
}

#[inline(always)]
fn write_error<F: Answering, P: Packet>(
    packet: &mut P,
    headers: Headers,
    source: F::Address,
    destination: F::Address,
    (kind, code, rest): (u8, u8, u32),
) -> Option<()> {
    let added = size_of::<F::Header>() + size_of::<Icmp>();
    // The eight octets with the ports that follow the network header.
    let quoted = (headers.transport - headers.network + 8).min(F::QUOTED) & !3;
    packet.grow_front(added)?;
    link::move_to_front(packet, headers.network, added)?;
    let outer = headers.network;
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
    // Otherwise the compiler derives it from the end of the sum, which the verifier cannot follow.
    let icmp = packet.blur(icmp);
    let header: &mut Icmp = packet.header_mut(icmp)?;
    *header = Icmp { kind, code, checksum: sum.checksum(), rest };
    link::send_back(packet)
}
