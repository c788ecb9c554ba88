//! A packet that leaves by a device: an answer of a backend, perhaps.

use super::follow;
use super::parse::{self, Network, Segment};
use super::{FamilyTables, Packet, Stage, Verdict, ingress, tcp, translate};
use crate::flow_table;
use crate::layout::{Flow, Reason};

#[inline(always)]
pub fn packet<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Most of what leaves is no answer of a backend: a packet of any shape passes uncounted.
    let parsed = parse::packet(packet, network);
    let segment: Segment<F> = match parsed {
        Ok(segment) => segment,
        Err(Reason::UnknownQuote) => return Verdict::Next(Stage::ErrorOut),
        Err(Reason::Fragment) => return Verdict::Next(Stage::FragmentOut),
        Err(_) => return Verdict::Pass,
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.place.protocol) {
        return Verdict::Pass;
    }
    this(packet, tables, &segment)
}

/// A packet that has been read, and may be an answer.
#[inline(always)]
pub fn this<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
) -> Verdict {
    let found = match follow::reverse(tables, segment) {
        Ok(Some(found)) => Ok(Some(found)),
        Ok(None) => follow::answer(tables, segment),
        Err(reason) => Err(reason),
    };
    match found {
        Ok(Some(found)) => {
            let target = &found.record;
            match translate::send(packet, tables, segment, target.direction, &target.rewrite) {
                Ok(()) => Verdict::Pass,
                Err(reason) => ingress::drop_for(tables, reason),
            }
        }
        Ok(None) => {
            forget_ended(tables, segment);
            ingress::pass(tables, Reason::NoFlow)
        }
        Err(reason) => ingress::drop_for(tables, reason),
    }
}

/// The client has dialled the backend itself, not through a Service: a flow that has ended must
/// not take what comes now for its own.
#[inline(always)]
fn forget_ended<F: Network, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) {
    if !tcp::answers(segment.tcp_flags) {
        return;
    }
    let Segment { place, destination, destination_port, .. } = *segment;
    let hash = follow::client_hash(tables, destination, destination_port, place.protocol);
    for bucket in hash.buckets(tables.flow_mask()) {
        let Some(bucket) = tables.flow_bucket(bucket) else { continue };
        let ended = flow_table::find(bucket, hash, |flow, _| is_of(flow, segment).then_some(()));
        if let Some(ended) = ended {
            ended.release();
        }
    }
}

#[inline(always)]
fn is_of<F: Network>(flow: &Flow<F>, segment: &Segment<F>) -> bool {
    flow.alias == segment.destination
        && flow.alias_port == segment.destination_port
        && flow.backend == segment.source
        && flow.backend_port == segment.source_port
        && flow.protocol == segment.place.protocol
}
