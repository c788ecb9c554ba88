//! Fragments. Only the first fragment of a packet contains the ports, which are stored for the
//! later ones. A later fragment that arrives before the first cannot be assigned to a flow.

use super::egress;
use crate::conntrack::Signal;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::lookup;
use crate::datapath::forward::next_hop::Out;
use crate::datapath::forward::rewrite;
use crate::datapath::forward::send::{self, Departure};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict, drop_for, pass_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Part, Segment, Transport};
use crate::header::NetworkHeader;
use crate::layout::{Fragment, FragmentKey, Reason, Ticks};

/// A fragment that arrives for a frontend or SNAT address. Each step has its own stack frame.
#[inline(always)]
pub fn arriving<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match look::<F, P, T>(packet, tables, network) {
        Look::First => first(packet, tables, network),
        Look::Later => later(packet, tables, network),
        Look::Sctp => pass_for(tables, Reason::Fragment),
        Look::Other => pass_for(tables, Reason::UnknownProtocol),
        Look::Malformed => pass_for(tables, Reason::Malformed),
    }
}

/// A fragment that leaves. Most are not replies from backends, and pass uncounted.
#[inline(always)]
pub fn leaving<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match look::<F, P, T>(packet, tables, network) {
        Look::First => first_reply(packet, tables, network),
        Look::Later => later_reply(packet, tables, network),
        Look::Sctp | Look::Other | Look::Malformed => Verdict::Pass,
    }
}

/// What a fragment is.
enum Look {
    /// A whole packet, or a first fragment, whose ports are stored for the later ones.
    First,
    Later,
    /// The first fragment of an SCTP packet: how a changed port changes the checksum depends on the
    /// length of the whole packet.
    Sctp,
    /// Fragmented ICMP is not handled.
    Other,
    Malformed,
}

#[inline(never)]
fn look<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Look {
    // No effect. To a function that only reads, the compiler passes the packet's bounds instead of
    // the packet, and the verifier treats them as plain numbers.
    packet.leave_by(0);
    let found = F::transport::<true, P>(packet, network);
    match found.part {
        Part::Later => return Look::Later,
        Part::Malformed => return Look::Malformed,
        Part::Whole | Part::First => {}
    }
    let segment: Segment<F> = match parse::segment(packet, found.headers) {
        Parsed::Segment(segment) => segment,
        Parsed::Malformed => return Look::Malformed,
        _ => return Look::Other,
    };
    if found.part == Part::First {
        if segment.headers.is_sctp() {
            return Look::Sctp;
        }
        remember(tables, &found, &segment);
    }
    Look::First
}

#[inline(always)]
fn first<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let mut carried = follow_request::<F, P, T>(packet, tables, network);
    if carried == Carried::Nothing {
        carried = follow_reply::<F, P, T>(packet, tables, network);
    }
    // Most clients have no flows in other buckets: then that stage continues with the one that
    // opens flows.
    tables.set_delivered(false);
    send::found_or::<F, P, T>(packet, tables, network, carried, Stage::Spread)
}

#[inline(never)]
fn follow_request<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Carried {
    carry::follow_begun::<F, P, T>(packet, tables, network)
}

#[inline(never)]
fn follow_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Carried {
    packet.leave_by(0);
    let Parsed::Segment::<F>(segment) = parse::begun(packet, network) else {
        return Carried::Failed(Reason::Malformed);
    };
    carry::carry_followed_reply(tables, &segment)
}

#[inline(never)]
fn first_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Parsed::Segment::<F>(segment) = parse::begun(packet, network) else {
        return Verdict::Pass;
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.headers.protocol) {
        return Verdict::Pass;
    }
    egress::follow(packet, tables, &segment)
}

#[inline(always)]
pub fn remember<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    found: &Transport,
    segment: &Segment<F>,
) {
    let fragment = Fragment {
        source_port: segment.source_port,
        destination_port: segment.destination_port,
        seen: tables.now(),
        protocol: segment.headers.protocol,
        reserved: [0; 3],
    };
    tables.set_fragment(&key(found, segment.source, segment.destination), fragment);
}

#[inline(always)]
fn key<F: PacketFamily>(
    found: &Transport,
    source: F::Address,
    destination: F::Address,
) -> FragmentKey<F> {
    FragmentKey {
        source,
        destination,
        identification: found.identification,
        protocol: found.protocol,
        reserved: [0; 3],
    }
}

/// A later fragment with the stored ports; `None` if the first fragment has not arrived.
#[inline(always)]
pub fn recall<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    found: &Transport,
) -> Option<Segment<F>> {
    let header: &F::Header = packet.header(found.headers.network)?;
    let (source, destination) = (header.source(), header.destination());
    let fragment = tables.fragment(&key(found, source, destination))?;
    if tables.now().since(fragment.seen) > Ticks::in_seconds(Fragment::LIFETIME) {
        return None;
    }
    let mut headers = found.headers;
    headers.protocol = fragment.protocol;
    let segment = Segment {
        headers,
        source,
        destination,
        source_port: fragment.source_port,
        destination_port: fragment.destination_port,
        signal: Signal::default(),
    };
    Some(segment.blur())
}

#[inline(always)]
fn later<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match look_up_later::<F, P, T>(packet, tables, network) {
        // Only first fragments cause ICMP errors.
        Carried::Found => send::in_steps::<F, P, T>(
            packet,
            tables,
            network,
            aim_later::<F, P, T>,
            rewrite_later::<F, P, T>,
        ),
        // The first fragment may be on its way to tc, and open its flow there.
        Carried::Nothing if !packet.resolves() => Verdict::Defer,
        Carried::Nothing | Carried::Failed(Reason::Fragment) => pass_for(tables, Reason::Fragment),
        Carried::Failed(reason) => drop_for(tables, reason),
    }
}

#[inline(never)]
fn look_up_later<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Carried {
    packet.leave_by(0);
    let found = F::transport::<true, P>(packet, network);
    match recall::<F, P, T>(packet, tables, &found) {
        Some(segment) => carry::carry_arriving(tables, &segment),
        None => Carried::Failed(Reason::Fragment),
    }
}

#[inline(never)]
fn aim_later<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    out: &mut Out,
) -> Departure {
    packet.leave_by(0);
    let found = F::transport::<true, P>(packet, network);
    match recall::<F, P, T>(packet, tables, &found) {
        Some(segment) => send::aim_without_errors(packet, tables, segment.headers, &segment, out),
        None => Departure::Ended(drop_for(tables, Reason::CorruptTable)),
    }
}

#[inline(never)]
fn rewrite_later<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Result<(), Reason> {
    let draft = tables.draft().ok_or(Reason::CorruptTable)?;
    let found = F::transport::<true, P>(packet, network);
    let segment = recall::<F, P, T>(packet, tables, &found).ok_or(Reason::CorruptTable)?;
    rewrite::part(packet, tables, &segment, &draft.decision)
}

#[inline(never)]
fn later_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let found = F::transport::<true, P>(packet, network);
    let Some(segment) = recall::<F, P, T>(packet, tables, &found) else {
        return Verdict::Pass;
    };
    let flow = match lookup::find_reply(tables, &segment) {
        Ok(None) => lookup::find_indexed_reply(tables, &segment),
        flow => flow,
    };
    match flow {
        Ok(Some(flow)) => match rewrite::part(packet, tables, &segment, &flow.record) {
            Ok(()) => Verdict::Pass,
            Err(reason) => drop_for(tables, reason),
        },
        Ok(None) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}
