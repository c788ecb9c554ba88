//! A packet that arrives on a device: towards a Service, or an answer to an alias of ours.

use super::follow::{self, Known};
use super::parse::{self, Network, Segment};
use super::{FamilyTables, Packet, Stage, Verdict, answer};
use crate::header::NetworkHeader;
use crate::layout::Reason;

#[inline(always)]
pub fn packet<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Some(header) = packet.header::<F::Header>(network) else {
        return pass(tables, Reason::Malformed);
    };
    if !tables.may_be_destination(header.destination()) {
        return Verdict::Pass;
    }
    let parsed = parse::packet(packet, network);
    let segment: Segment<F> = match parsed {
        Ok(segment) => segment,
        Err(Reason::UnknownQuote) => return Verdict::Next(Stage::ErrorIn),
        Err(Reason::Fragment) => return Verdict::Next(Stage::FragmentIn),
        Err(Reason::NotAPeer) => return Verdict::Next(Stage::Decapsulate),
        Err(reason) => return pass(tables, reason),
    };
    this(packet, tables, &segment)
}

/// A packet that has been read.
#[inline(always)]
pub fn this<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    match follow::forward(tables, segment) {
        Ok(Known::Flow(found)) => follow::send(packet, tables, segment, &found.record, found.ways),
        Ok(Known::Gone(found)) => {
            let verdict = answer::unreachable(packet, tables, segment.place, Reason::BackendGone);
            if verdict != Verdict::Defer {
                found.release();
            }
            verdict
        }
        // What asks for a connection answers nothing: the index of answers need not be looked at.
        Ok(Known::Nothing) if follow::opens(segment) => Verdict::Next(Stage::Open),
        Ok(Known::Nothing) => match follow::answer(tables, segment) {
            Ok(Some(found)) => follow::send(packet, tables, segment, &found.record, found.ways),
            Ok(None) => Verdict::Next(Stage::Open),
            Err(reason) => drop_for(tables, reason),
        },
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(always)]
pub fn pass<T: super::Tables>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Decline
}

#[inline(always)]
pub fn drop_for<T: super::Tables>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Drop
}
