//! ICMP errors about packets that we translated: who gets one must find in it the packet that he
//! sent, else he takes no notice. Path MTU discovery depends on them.
//!
//! An error quotes the packet that it is about, at least up to its ports. Whatever would answer the
//! quoted packet belongs to the same flow; so the flow is found by that answer's ends, and what it
//! says of the answer's source and destination holds for the error's, and the other way round for
//! the quote's.

use super::follow::{self, Target};
use super::ingress::{drop_for, pass};
use super::parse::{self, Network, Place, Segment};
use super::translate::Rewrite;
use super::{Direction, FamilyTables, Packet, Verdict};
use crate::checksum::Delta;
use crate::header::{Icmp, NetworkHeader, Ports, Tcp, Udp, protocol};
use crate::layout::{FlowKind, Reason};

/// No error of ours begins farther from the packet's start. The verifier wants a bound that leaves
/// room for the headers of the quote.
const FARTHEST: usize = 1 << 12;

/// An error, and where its parts are.
struct Error<F: Network> {
    /// Of the error itself.
    place: Place,
    /// What would answer the quoted packet; its place is that of the quote.
    answer: Segment<F>,
}

/// An error that arrives on a device.
#[inline(never)]
pub fn arriving<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let error = match read::<F, P>(packet, network) {
        Ok(error) => error,
        Err(reason) => return pass(tables, reason),
    };
    let found = match follow::find_dialled(tables, &error.answer) {
        Ok(Some(found)) => Ok(Some(found)),
        Ok(None) => follow::find_alias(tables, &error.answer),
        Err(reason) => Err(reason),
    };
    match found {
        Ok(Some(found)) if found.record.kind.has(FlowKind::FORWARDED) => {
            // Errors are not answered by errors.
            follow::leave(packet, tables, &error.place, &found.record, found.ways, |packet| {
                translate(packet, &error, &found.record)
            })
        }
        Ok(Some(found)) => finish(tables, translate(packet, &error, &found.record)),
        Ok(None) => pass(tables, Reason::UnknownQuote),
        Err(reason) => drop_for(tables, reason),
    }
}

/// An error that leaves by a device. Most are about no packet of ours: they pass uncounted.
#[inline(never)]
pub fn leaving<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Ok(error) = read::<F, P>(packet, network) else {
        return Verdict::Pass;
    };
    let Segment { place, source, source_port, .. } = error.answer;
    if !tables.may_be_source(source, source_port, place.protocol) {
        return Verdict::Pass;
    }
    let found = match follow::find_answered(tables, &error.answer) {
        Ok(Some(found)) => Ok(Some(found)),
        Ok(None) => follow::find_alias(tables, &error.answer),
        Err(reason) => Err(reason),
    };
    match found {
        Ok(Some(found)) => finish(tables, translate(packet, &error, &found.record)),
        Ok(None) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}

/// What would answer the packet that an error quotes; `None` if it is no such error. And where the
/// error's headers are.
#[inline(always)]
pub fn about<F: Network, P: Packet>(packet: &P, network: usize) -> Option<(Place, Segment<F>)> {
    read(packet, network).ok().map(|error| (error.place, error.answer))
}

/// Finds the parts of an error; the reason says what else it is.
#[inline(always)]
fn read<F: Network, P: Packet>(packet: &P, network: usize) -> Result<Error<F>, Reason> {
    let place = parse::transport::<F, P>(packet, network)?;
    let icmp: &Icmp = packet.header(place.transport).ok_or(Reason::Malformed)?;
    if place.protocol != F::ICMP || !F::is_error(icmp.kind) {
        return Err(Reason::UnknownProtocol);
    }
    if place.transport > FARTHEST {
        return Err(Reason::UnknownQuote);
    }
    let quote = packet.blur(place.transport + size_of::<Icmp>());
    let quoted = parse::beginning::<F, P>(packet, quote).map_err(|_| Reason::UnknownQuote)?;
    if !matches!(quoted.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
        return Err(Reason::UnknownQuote);
    }
    let header: &F::Header = packet.header(quote).ok_or(Reason::UnknownQuote)?;
    let (source, destination) = (header.destination(), header.source());
    let ports: &Ports = packet.header(quoted.transport).ok_or(Reason::UnknownQuote)?;
    let answer = Segment {
        place: quoted,
        source,
        destination,
        source_port: u16::from_be_bytes(ports.destination),
        destination_port: u16::from_be_bytes(ports.source),
        tcp_flags: 0,
    };
    Ok(Error { place, answer })
}

#[inline(always)]
fn finish<T: super::Tables>(tables: &T, translated: Result<(), Reason>) -> Verdict {
    match translated {
        Ok(()) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}

/// Translates the error and what it quotes.
#[inline(always)]
fn translate<F: Network, P: Packet>(
    packet: &mut P,
    error: &Error<F>,
    target: &Target<F>,
) -> Result<(), Reason> {
    let Error { place, answer } = error;
    let rewrite = &target.rewrite;
    let quote = rewrite_quote(packet, place, answer, rewrite)?;

    let header: &mut F::Header = packet.header_mut(place.network).ok_or(Reason::Unwritable)?;
    let (source, destination) = (header.source(), header.destination());
    // Who complains is somebody on the way, whom the other side can't know: the error comes from
    // whom it has dialled. The backend knows who is on the way, unless it does not know the client.
    let hidden = target.direction == Direction::Reverse || rewrite.source.address != answer.source;
    let new_source = if hidden { rewrite.source.address } else { source };
    header.set_source(new_source);
    header.set_destination(rewrite.destination.address);
    let address = Delta::of_address(source, new_source)
        .plus(Delta::of_address(destination, rewrite.destination.address));
    // ICMPv6's checksum is over the addresses, too; ICMP's is not, but IPv4's is.
    let address = match header.checksum_mut() {
        Some(checksum) => {
            *checksum = address.apply(*checksum);
            Delta::default()
        }
        None => address,
    };
    let checksum = place.transport + core::mem::offset_of!(Icmp, checksum);
    packet.update_transport_checksum::<F>(checksum, address, quote, false).ok_or(Reason::Unwritable)
}

/// Restores the quoted packet to what its sender sent; says what that changes.
#[inline(always)]
fn rewrite_quote<F: Network, P: Packet>(
    packet: &mut P,
    place: &Place,
    answer: &Segment<F>,
    rewrite: &Rewrite<F>,
) -> Result<Delta, Reason> {
    let quoted = answer.place;
    let outer: &F::Header = packet.header(place.network).ok_or(Reason::Unwritable)?;
    let end = place.network + outer.length() as usize;

    let header: &mut F::Header = packet.header_mut(quoted.network).ok_or(Reason::Unwritable)?;
    header.set_source(rewrite.destination.address);
    header.set_destination(rewrite.source.address);
    let address = Delta::of_address(answer.source, rewrite.source.address)
        .plus(Delta::of_address(answer.destination, rewrite.destination.address));
    let mut change = address;
    if let Some(checksum) = header.checksum_mut() {
        change = change.plus(replace(checksum, address, false));
    }

    let ports: &mut Ports = packet.header_mut(quoted.transport).ok_or(Reason::Unwritable)?;
    ports.source = rewrite.destination.port.to_be_bytes();
    ports.destination = rewrite.source.port.to_be_bytes();
    let port = Delta::of_port(answer.source_port, rewrite.source.port)
        .plus(Delta::of_port(answer.destination_port, rewrite.destination.port));
    change = change.plus(port);

    // Of SCTP's nothing can be said without the rest of the packet; nobody looks at it here.
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
        // Quotes may be as short as that, and datagrams without a checksum.
        None => Ok(change),
        Some(field) if optional && *field == [0, 0] => Ok(change),
        Some(field) => Ok(change.plus(replace(field, address.plus(port), optional))),
    }
}

/// Brings a checksum up to date; says what that changes.
#[inline(always)]
fn replace(checksum: &mut [u8; 2], delta: Delta, optional: bool) -> Delta {
    let old = *checksum;
    *checksum = delta.apply(old);
    if optional && *checksum == [0, 0] {
        *checksum = [0xff, 0xff];
    }
    Delta::of_port(u16::from_be_bytes(old), u16::from_be_bytes(*checksum))
}
