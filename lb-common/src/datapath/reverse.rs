//! A packet on its way from a backend back to the client.

use super::parse::{self, Network, Segment};
use super::translate::{self, End, Rewrite};
use super::{Direction, FamilyTables, Packet, Verdict, tcp};
use crate::flow_table;
use crate::hash::FlowHash;
use crate::layout::{Flow, Reason};

#[inline(never)]
pub fn packet<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Most of what leaves is no answer of a backend: a packet of any shape passes uncounted.
    let parsed = F::transport(packet, network).and_then(|place| parse::segment(packet, place));
    let Ok::<Segment<F>, _>(segment) = parsed else {
        return Verdict::Pass;
    };
    if !tables.may_be_source(segment.source, segment.source_port, segment.place.protocol) {
        return Verdict::Pass;
    }
    let sent = follow(tables, &segment).and_then(|rewrite| {
        translate::send(packet, tables, &segment, Direction::Reverse, &rewrite)
    });
    match sent {
        Ok(()) => Verdict::Pass,
        Err(reason @ Reason::NoFlow) => {
            tables.count(reason);
            Verdict::Pass
        }
        Err(reason) => {
            tables.count(reason);
            Verdict::Drop(reason)
        }
    }
}

#[inline(always)]
fn follow<F: Network, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Result<Rewrite<F>, Reason> {
    let hash = FlowHash::of_client::<F>(
        tables.settings().flow_seed,
        segment.destination,
        segment.destination_port,
        segment.place.protocol,
    );
    let buckets = hash.buckets(tables.flow_mask());
    for bucket in buckets {
        let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
        let found = flow_table::find(bucket, hash, |flow, state| {
            // It may be another flow's of the same client and backend.
            let passed_over = tcp::answers_a_later_dial(state, segment.tcp_flags);
            if passed_over { None } else { rewrite(flow, segment) }
        });
        if let Some(found) = found {
            let state = tcp::next_state(found.state(), Direction::Reverse, segment.tcp_flags);
            found.touch(tables.now(), state);
            return Ok(found.record);
        }
    }
    // Nor is it to a later dial through the Service: the client has dialled the backend itself,
    // and a flow that has ended must not take what comes now for its own.
    if tcp::answers(segment.tcp_flags) {
        for bucket in buckets {
            let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
            if let Some(ended) = flow_table::find(bucket, hash, |flow, _| rewrite(flow, segment)) {
                ended.release();
            }
        }
    }
    Err(Reason::NoFlow)
}

/// What the flow says of the packet, if it is the packet's flow.
#[inline(always)]
fn rewrite<F: Network>(flow: &Flow<F>, segment: &Segment<F>) -> Option<Rewrite<F>> {
    let same = flow.client == segment.destination
        && flow.client_port == segment.destination_port
        && flow.backend == segment.source
        && flow.backend_port == segment.source_port
        && flow.protocol == segment.place.protocol;
    same.then_some(Rewrite {
        to: End { address: flow.frontend, port: flow.frontend_port },
        service_port: flow.service_port,
        backend_index: flow.backend_index,
    })
}
