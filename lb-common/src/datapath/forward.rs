//! A packet on its way from a client to a Service.

use super::parse::{self, Network, Segment};
use super::translate::{self, End, Rewrite};
use super::{Direction, FamilyTables, Packet, Verdict, select, tcp};
use crate::flow_table::{self, Found};
use crate::hash::FlowHash;
use crate::header::NetworkHeader;
use crate::layout::{Backend, Flow, Reason, Ticks};

/// The flow's rewrite, and the backend's generation when it was chosen.
struct Target<F: Network> {
    rewrite: Rewrite<F>,
    generation: u32,
}

#[inline(never)]
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
    let parsed = F::transport(packet, network).and_then(|place| parse::segment(packet, place));
    let segment: Segment<F> = match parsed {
        Ok(segment) => segment,
        Err(reason) => return pass(tables, reason),
    };

    let found = follow(tables, &segment).and_then(|known| match known {
        Some(rewrite) => Ok(rewrite),
        None => open(tables, &segment),
    });
    let sent = found.and_then(|rewrite| {
        translate::send(packet, tables, &segment, Direction::Forward, &rewrite)
    });
    match sent {
        Ok(()) => Verdict::Pass,
        // Addresses of ours are also addresses of other things: a node has its ssh.
        Err(reason @ Reason::NoFrontend) => pass(tables, reason),
        Err(reason) => {
            tables.count(reason);
            Verdict::Drop(reason)
        }
    }
}

#[inline(always)]
fn hash<F: Network, T: FamilyTables<F>>(tables: &T, segment: &Segment<F>) -> FlowHash {
    let seed = tables.settings().flow_seed;
    FlowHash::of_client::<F>(seed, segment.source, segment.source_port, segment.place.protocol)
}

/// The way of a packet whose flow is known.
#[inline(always)]
fn follow<F: Network, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Result<Option<Rewrite<F>>, Reason> {
    let hash = hash(tables, segment);
    for bucket in hash.buckets(tables.flow_mask()) {
        let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
        let found = flow_table::find(bucket, hash, |flow, _| target(flow, segment));
        let Some(found) = found else { continue };
        let now = tables.now();
        if !goes_on(tables, &found, segment, now) {
            found.release();
            return Ok(None);
        }
        found.touch(now, tcp::next_state(found.state(), Direction::Forward, segment.tcp_flags));
        return Ok(Some(found.record.rewrite));
    }
    Ok(None)
}

/// What the flow says of the packet, if it is the packet's flow.
#[inline(always)]
fn target<F: Network>(flow: &Flow<F>, segment: &Segment<F>) -> Option<Target<F>> {
    let same = flow.client == segment.source
        && flow.client_port == segment.source_port
        && flow.frontend == segment.destination
        && flow.frontend_port == segment.destination_port
        && flow.protocol == segment.place.protocol;
    same.then_some(Target { rewrite: rewrite(flow), generation: flow.backend_generation })
}

#[inline(always)]
fn rewrite<F: Network>(flow: &Flow<F>) -> Rewrite<F> {
    Rewrite {
        to: End { address: flow.backend, port: flow.backend_port },
        service_port: flow.service_port,
        backend_index: flow.backend_index,
    }
}

/// Whether the packet belongs to the flow found, or to a new one with the same ends.
#[inline(always)]
fn goes_on<F: Network, T: FamilyTables<F>>(
    tables: &T,
    found: &Found<'_, Target<F>>,
    segment: &Segment<F>,
    now: Ticks,
) -> bool {
    if segment.place.is_tcp() {
        if tcp::is_closing(found.state()) && tcp::opens(segment.tcp_flags) {
            return false;
        }
    } else if found.expired(now) {
        return false;
    }
    // A flow whose backend is gone starts anew: datagrams go to another backend at once, and a
    // TCP connection is reset by the backend that does not know it.
    let target = &found.record;
    tables.backend(target.rewrite.backend_index).is_some_and(|backend: Backend<F::Address>| {
        backend.protocol != 0 && backend.generation == target.generation
    })
}

/// Chooses a backend and commits the flow.
///
/// A function of its own in the kernel, too: it keeps what only a new flow needs off the stack
/// frame, of at most 512 bytes, and out of the way of the packets that follow.
#[inline(never)]
fn open<F: Network, T: FamilyTables<F>>(
    tables: &T,
    segment: &Segment<F>,
) -> Result<Rewrite<F>, Reason> {
    let frontend = select::frontend(tables, segment).ok_or(Reason::NoFrontend)?;
    let choice = select::backend(tables, segment, &frontend)?;
    let flow = Flow {
        client: segment.source,
        frontend: segment.destination,
        backend: choice.backend.address,
        client_port: segment.source_port,
        frontend_port: segment.destination_port,
        backend_port: choice.backend.port,
        protocol: segment.place.protocol,
        reserved: 0,
        service_port: frontend.service_port,
        backend_index: choice.index,
        backend_generation: choice.backend.generation,
        padding: F::Padding::default(),
    };
    let hash = hash(tables, segment);
    let now = tables.now();
    for bucket in hash.buckets(tables.flow_mask()) {
        let bucket = tables.flow_bucket(bucket).ok_or(Reason::CorruptTable)?;
        if flow_table::insert(bucket, hash, &flow, !segment.place.is_tcp(), now) {
            tables.count_new_flow(flow.service_port, flow.backend_index);
            return Ok(rewrite(&flow));
        }
    }
    Err(Reason::FlowTableFull)
}

#[inline(always)]
fn pass<F: Network, T: FamilyTables<F>>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Pass
}
