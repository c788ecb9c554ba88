//! ICMP errors about translated packets. The receiver ignores an error that does not quote the
//! packet that it sent. Path MTU discovery depends on these errors.
//!
//! An error quotes the packet that it is about, at least up to its ports. A reply to the quoted
//! packet would belong to the same flow. So the flow is looked up by the addresses and ports of
//! that reply. The translation of the reply also applies to the error, and in the opposite
//! direction to the quote.

use super::neighbour;
use crate::checksum::Delta;
use crate::conntrack::Signal;
use crate::datapath::arrival::Arrival;
use crate::datapath::carried::Decision;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::next_hop::Out;
use crate::datapath::forward::send::{self, Departure};
use crate::datapath::forward::stored;
use crate::datapath::function::{Function, PacketFunction, reason_in, result_of};
use crate::datapath::handover::{DraftedDecision, NextStage};
use crate::datapath::segment::{Headers, OFFSETS, Segment};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::ndp;
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{self, PacketFamily};
use crate::header::{Icmp, NetworkHeader, Tcp, TransportPorts, Udp, protocol};
use crate::layout::{Direction, Reason};

/// Highest offset of a handled error. The verifier needs a bound that leaves room for the headers
/// of the quote.
const FARTHEST: usize = 1 << 12;

/// An ICMP packet that arrives.
#[inline(always)]
pub fn process_arriving_error<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Verdict {
    // A solicitation to the address itself.
    if is_neighbours::<F, P>(packet, network) {
        return if neighbour::answers_here(packet) {
            Verdict::Next(NextStage::NEIGHBOUR)
        } else {
            Verdict::Pass
        };
    }
    let carried = match packet.call::<F>(PacketFunction::ReadError, network, || {
        read_error::<F, P, T>(packet, tables, network)
    }) {
        0 => find_or_choose::<F, P, T>(packet, tables, arrival),
        result => Carried::Failed(reason_in(result)),
    };
    match carried {
        // Errors cause no errors.
        Carried::Found(_) => send::in_steps::<F, P, T>(
            packet,
            tables,
            network,
            find_error_destination::<F, P, T>,
            rewrite_error::<F, P, T>,
        ),
        Carried::Nothing => Verdict::Next(NextStage::unserved(tables, Reason::UnknownQuote)),
        Carried::Failed(reason @ (Reason::CorruptTable | Reason::NoSuchBucket)) => {
            drop_for(tables, reason)
        }
        // Not readable, or not an error about a packet of a Service.
        Carried::Failed(reason) => Verdict::Next(NextStage::unserved(tables, reason)),
    }
}

/// Finds the flow of the quoted packet. If it is not here, the error may go through a tunnel to the node
/// that has it, but not if it came through one.
#[inline(always)]
fn find_or_choose<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    arrival: Arrival,
) -> Carried {
    match Carried::call(tables, Function::FindArriving) {
        Carried::Nothing
            if packet.role() == Role::External
                && !arrival.is_by_tunnel()
                && tables.call(Function::ChooseForError) != 0 =>
        {
            Carried::Found(DraftedDecision::proven())
        }
        carried => carried,
    }
}

/// Whether it is a packet of neighbour discovery, instead of an error from a router on the link.
#[inline(always)]
fn is_neighbours<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> bool {
    packet.header::<F::Header>(network).is_some_and(F::is_neighbours)
        && packet
            .header::<Icmp>(network + size_of::<F::Header>())
            .is_some_and(|icmp| matches!(icmp.kind, ndp::SOLICITATION | ndp::ADVERTISEMENT))
}

#[inline(never)]
fn find_error_destination<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    out: &mut Out,
) -> Departure {
    packet.keep_whole();
    match stored_error::<F, T>(tables, network) {
        Some(error) => {
            send::aim_without_errors(packet, tables, error.headers, &error.quoted_reply, out)
        }
        None => Departure::Ended(drop_for(tables, Reason::CorruptTable)),
    }
}

#[inline(never)]
fn rewrite_error<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Result<(), Reason> {
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let error = stored_error::<F, T>(tables, network).ok_or(Reason::CorruptTable)?;
    translate_error(packet, &error, &draft.decision)
}

/// An ICMP packet that leaves. Most are not about packets of Services, and pass uncounted.
#[inline(never)]
pub fn process_leaving_error<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    if packet.call::<F>(PacketFunction::ReadError, network, || {
        read_error::<F, P, T>(packet, tables, network)
    }) != 0
    {
        return Verdict::Pass;
    }
    let Some(error) = stored_error::<F, T>(tables, network) else {
        return Verdict::Pass;
    };
    let Segment { headers, source, source_port, .. } = error.quoted_reply;
    if !tables.may_be_source(source, source_port, headers.protocol) {
        return Verdict::Pass;
    }
    match carry::find_leaving(tables) {
        Carried::Found(_) => {
            let Some(draft) = tables.draft() else {
                return drop_for(tables, Reason::CorruptTable);
            };
            let rewritten = translate_error(packet, &error, &draft.decision);
            let verdict = send::pass_rewritten(tables, rewritten);
            send::pass_to_client(packet, tables, draft.decision.kind, verdict)
        }
        Carried::Nothing => Verdict::Pass,
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

/// An error, and where its parts are.
struct Error<F: PacketFamily> {
    /// Headers of the error itself.
    headers: Headers,
    /// A reply to the quoted packet, with the offsets of the quote.
    quoted_reply: Segment<F>,
}

/// The function [`PacketFunction::ReadError`]: 0, or the reason why it is no error.
#[inline(always)]
pub fn read_error<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
) -> u32 {
    let error = match read_error_parts::<F, P>(packet, network) {
        Ok(error) => error,
        Err(reason) => return result_of(reason),
    };
    let Some(draft) = tables.draft() else { return result_of(Reason::CorruptTable) };
    draft.error = error.headers;
    stored::store_segment(tables, &error.quoted_reply);
    0
}

/// The error that [`read_error`] has stored.
#[inline(always)]
fn stored_error<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    network: usize,
) -> Option<Error<F>> {
    let draft = tables.draft()?;
    let Headers { transport, protocol, .. } = draft.error;
    // To the verifier the stored offsets are any numbers.
    let headers = Headers { network, transport: transport & (OFFSETS - 1), protocol };
    let quote = draft.segment.headers.network & (OFFSETS - 1);
    let quoted_reply = stored::read_segment::<F, T>(tables, quote)?;
    Some(Error { headers, quoted_reply })
}

/// Finds the parts of an error.
#[inline(always)]
fn read_error_parts<F: PacketFamily, P: Packet>(
    packet: &P,
    network: usize,
) -> Result<Error<F>, Reason> {
    let headers = parse::transport::<F, P>(packet, network)?;
    let icmp: &Icmp = packet.header(headers.transport).ok_or(Reason::Malformed)?;
    if headers.protocol != F::ICMP || !F::is_error(icmp.kind) {
        return Err(Reason::UnknownProtocol);
    }
    if headers.transport > FARTHEST {
        return Err(Reason::UnknownQuote);
    }
    let quote = packet.blur(headers.transport + size_of::<Icmp>());
    let quoted =
        parse::whole_or_first_headers::<F, P>(packet, quote).map_err(|_| Reason::UnknownQuote)?;
    if !matches!(quoted.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
        return Err(Reason::UnknownQuote);
    }
    let header: &F::Header = packet.header(quote).ok_or(Reason::UnknownQuote)?;
    let (source, destination) = (header.destination(), header.source());
    let ports: &TransportPorts = packet.header(quoted.transport).ok_or(Reason::UnknownQuote)?;
    let quoted_reply = Segment {
        headers: quoted,
        source,
        destination,
        source_port: u16::from_be_bytes(ports.destination),
        destination_port: u16::from_be_bytes(ports.source),
        signal: Signal::default(),
    };
    Ok(Error { headers, quoted_reply: quoted_reply.blur() })
}

/// Translates the error and what it quotes.
#[inline(always)]
fn translate_error<F: PacketFamily, P: Packet>(
    packet: &mut P,
    error: &Error<F>,
    decision: &Decision<F>,
) -> Result<(), Reason> {
    let Error { headers, quoted_reply } = error;
    let quote = rewrite_quote(packet, headers, quoted_reply, decision)?;

    let header: &mut F::Header = packet.header_mut(headers.network).ok_or(Reason::Unwritable)?;
    let (source, destination) = (header.source(), header.destination());
    // The sender is a router between the hosts. A client gets the error from the frontend, because
    // it does not know the network behind it. A backend gets it from the router itself, unless SNAT
    // hides the client.
    let hidden =
        decision.direction == Direction::Reverse || decision.source.address != quoted_reply.source;
    let new_source = if hidden { decision.source.address } else { source };
    header.set_source(new_source);
    header.set_destination(decision.destination.address);
    let address = Delta::of_address(source, new_source)
        .plus(Delta::of_address(destination, decision.destination.address));
    // ICMPv6's checksum is over the addresses, too; ICMP's is not, but IPv4's is.
    let address = match header.checksum_mut() {
        Some(checksum) => {
            address.update(checksum);
            Delta::default()
        }
        None => address,
    };
    let checksum = headers.transport + core::mem::offset_of!(Icmp, checksum);
    packet.update_transport_checksum::<F>(checksum, address, quote, false).ok_or(Reason::Unwritable)
}

/// Restores the quoted packet to what its sender sent; returns the difference for the outer
/// checksum.
#[inline(always)]
fn rewrite_quote<F: PacketFamily, P: Packet>(
    packet: &mut P,
    headers: &Headers,
    quoted_reply: &Segment<F>,
    decision: &Decision<F>,
) -> Result<Delta, Reason> {
    let quoted = quoted_reply.headers;
    let outer: &F::Header = packet.header(headers.network).ok_or(Reason::Unwritable)?;
    let end = headers.network + outer.length() as usize;

    let header: &mut F::Header = packet.header_mut(quoted.network).ok_or(Reason::Unwritable)?;
    header.set_source(decision.destination.address);
    header.set_destination(decision.source.address);
    let address = Delta::of_address(quoted_reply.source, decision.source.address)
        .plus(Delta::of_address(quoted_reply.destination, decision.destination.address));
    let mut change = address;
    if let Some(checksum) = header.checksum_mut() {
        change = change.plus(replace_checksum(checksum, address, false));
    }

    let ports: &mut TransportPorts =
        packet.header_mut(quoted.transport).ok_or(Reason::Unwritable)?;
    ports.source = decision.destination.port.to_be_bytes();
    ports.destination = decision.source.port.to_be_bytes();
    let port = Delta::of_port(quoted_reply.source_port, decision.source.port)
        .plus(Delta::of_port(quoted_reply.destination_port, decision.destination.port));
    change = change.plus(port);

    // SCTP's checksum cannot be updated without the rest of the packet; receivers do not verify it
    // in a quote.
    let checksum = match quoted.protocol {
        protocol::TCP => core::mem::offset_of!(Tcp, checksum),
        protocol::UDP => core::mem::offset_of!(Udp, checksum),
        _ => return Ok(change),
    };
    let checksum = quoted.transport + checksum;
    if checksum + 2 > end {
        return Ok(change);
    }
    let optional = quoted.protocol == protocol::UDP;
    match packet.header_mut::<[u8; 2]>(checksum) {
        // A quote may end before the checksum, and a datagram may have none.
        None => Ok(change),
        Some(field) if optional && *field == [0, 0] => Ok(change),
        Some(field) => Ok(change.plus(replace_checksum(field, address.plus(port), optional))),
    }
}

/// Updates a checksum; returns the difference.
#[inline(always)]
fn replace_checksum(checksum: &mut [u8; 2], delta: Delta, optional: bool) -> Delta {
    let old = *checksum;
    *checksum = delta.apply(old);
    if optional && *checksum == [0, 0] {
        *checksum = [0xff, 0xff];
    }
    Delta::of_port(u16::from_be_bytes(old), u16::from_be_bytes(*checksum))
}
