//! Fragments. Only the first one of a packet has its ports; what they are is kept for the later ones,
//! which are then of the same flow. A later one that comes before the first can't be told whose it is.

use super::follow;
use super::ingress::{self, drop_for, pass};
use super::parse::{self, Network, Part, Segment, Transport};
use super::{FamilyTables, Packet, Verdict, egress, translate};
use crate::header::NetworkHeader;
use crate::layout::{FlowKind, Fragment, FragmentKey, Reason, Ticks};

/// A fragment that arrives on a device, for an address of ours. Each step has the stack for itself.
#[inline(always)]
pub fn arriving<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match look::<F, P, T>(packet, tables, network) {
        Look::First => first(packet, tables, network),
        Look::Later => later(packet, tables, network),
        Look::Sctp => pass(tables, Reason::Fragment),
        Look::Other => pass(tables, Reason::UnknownProtocol),
        Look::Malformed => pass(tables, Reason::Malformed),
    }
}

/// A fragment that leaves by a device. Most are nothing of ours, and pass uncounted.
#[inline(always)]
pub fn leaving<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match look::<F, P, T>(packet, tables, network) {
        Look::First => first_answer(packet, tables, network),
        Look::Later => later_answer(packet, tables, network),
        Look::Sctp | Look::Other | Look::Malformed => Verdict::Pass,
    }
}

/// What a fragment is.
enum Look {
    /// As good as a whole packet, if it is not one that says it is a fragment: its ports are kept
    /// for the later ones.
    First,
    Later,
    /// The first one of a packet of SCTP: what a changed port does to the checksum depends on the
    /// length of the whole.
    Sctp,
    /// Not even an error in pieces is worth a look.
    Other,
    Malformed,
}

#[inline(never)]
fn look<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Look {
    // Nowhere as yet. A function that only reads gets the packet's bounds from the compiler instead
    // of the packet: mere numbers, to the verifier.
    packet.leave_by(0);
    let found = F::transport::<true, P>(packet, network);
    match found.part {
        Part::Later => return Look::Later,
        Part::Malformed => return Look::Malformed,
        Part::Whole | Part::First => {}
    }
    let segment: Segment<F> = match parse::segment(packet, found.place) {
        Ok(segment) => segment,
        Err(Reason::Malformed) => return Look::Malformed,
        Err(_) => return Look::Other,
    };
    if found.part == Part::First {
        if segment.place.is_sctp() {
            return Look::Sctp;
        }
        remember(tables, &found, &segment);
    }
    Look::First
}

#[inline(never)]
fn first<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match parse::begun(packet, network) {
        Ok(segment) => ingress::this(packet, tables, &segment),
        Err(reason) => pass(tables, reason),
    }
}

#[inline(never)]
fn first_answer<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Ok::<Segment<F>, _>(segment) = parse::begun(packet, network) else {
        return Verdict::Pass;
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.place.protocol) {
        return Verdict::Pass;
    }
    egress::this(packet, tables, &segment)
}

#[inline(always)]
pub fn remember<F: Network, T: FamilyTables<F>>(
    tables: &T,
    found: &Transport,
    segment: &Segment<F>,
) {
    let fragment = Fragment {
        source_port: segment.source_port,
        destination_port: segment.destination_port,
        seen: tables.now(),
        protocol: segment.place.protocol,
        reserved: [0; 3],
    };
    tables.set_fragment(&key(found, segment.source, segment.destination), fragment);
}

#[inline(always)]
fn key<F: Network>(
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

/// What a later fragment would be if it had its ports; `None` if its first one has not come.
#[inline(always)]
pub fn recall<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    found: &Transport,
) -> Option<Segment<F>> {
    let header: &F::Header = packet.header(found.place.network)?;
    let (source, destination) = (header.source(), header.destination());
    let fragment = tables.fragment(&key(found, source, destination))?;
    if tables.now().since(fragment.seen) > Ticks::in_seconds(Fragment::LIFETIME) {
        return None;
    }
    let mut place = found.place;
    place.protocol = fragment.protocol;
    Some(Segment {
        place,
        source,
        destination,
        source_port: fragment.source_port,
        destination_port: fragment.destination_port,
        tcp_flags: 0,
    })
}

#[inline(never)]
fn later<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let found = F::transport::<true, P>(packet, network);
    let Some(segment) = recall::<F, P, T>(packet, tables, &found) else {
        return pass(tables, Reason::Fragment);
    };
    let flow = match follow::find_dialled(tables, &segment) {
        Ok(None) => follow::find_alias(tables, &segment),
        flow => flow,
    };
    match flow {
        Ok(Some(flow)) if flow.record.kind.has(FlowKind::FORWARDED) => {
            // Only first fragments are answered by errors.
            let target = &flow.record;
            follow::leave(packet, tables, &segment.place, target, flow.ways, |packet| {
                translate::part(packet, tables, &segment, target.direction, &target.rewrite)
            })
        }
        Ok(Some(flow)) => finish(packet, tables, &segment, &flow.record),
        // The first one may be on its way to the hook behind this one, and open its flow there.
        Ok(None) if !packet.resolves() => Verdict::Defer,
        Ok(None) => pass(tables, Reason::Fragment),
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(never)]
fn later_answer<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let found = F::transport::<true, P>(packet, network);
    let Some(segment) = recall::<F, P, T>(packet, tables, &found) else {
        return Verdict::Pass;
    };
    let flow = match follow::find_answered(tables, &segment) {
        Ok(None) => follow::find_alias(tables, &segment),
        flow => flow,
    };
    match flow {
        Ok(Some(flow)) => finish(packet, tables, &segment, &flow.record),
        Ok(None) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(always)]
fn finish<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    target: &follow::Target<F>,
) -> Verdict {
    match translate::part(packet, tables, segment, target.direction, &target.rewrite) {
        Ok(()) => Verdict::Pass,
        Err(reason) => drop_for(tables, reason),
    }
}
