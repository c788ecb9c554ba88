//! A packet that belongs to no flow: it may open one.

use super::alias;
use super::follow::{self, Known, Target};
use super::parse::{self, Network, Segment};
use super::select::{self, Choice, Dialled, Origin};
use super::way::{self, Query, Route};
use super::{FamilyTables, Packet, Rejection, Role, Stage, Verdict, affinity, answer, ingress};
use crate::family::Family;
use crate::flow_table::{self, Beginning, Claim};
use crate::hash::FlowHash;
use crate::header::{GUE, protocol};
use crate::layout::{Flow, FlowBucket, FlowKind, Reason, Ticks, Ways};

#[inline(always)]
pub fn packet<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match choose(packet, tables, network) {
        Verdict::Next(Stage::Open) => begin(packet, tables, network),
        verdict => verdict,
    }
}

/// A packet that came through a tunnel, for a backend on this node that another one has chosen.
/// In parts, so that what one needs of the stack is free for the others.
#[inline(always)]
pub fn delivered<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match hand_over(packet, tables, network) {
        Verdict::Next(Stage::Delivered) => {}
        verdict => return verdict,
    }
    match take(packet, tables, network) {
        Verdict::Next(Stage::Open) => begin_apart(packet, tables, network),
        verdict => verdict,
    }
}

/// To the flow that it is of. The same stage comes next if there is none.
#[inline(never)]
fn hand_over<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Ok::<Segment<F>, _>(segment) = parse::begun(packet, network) else {
        return ingress::drop_for(tables, Reason::Malformed);
    };
    match follow::forward(tables, &segment) {
        // Another node has chosen a backend of this one: it is not sent on, round and round.
        Ok(Known::Flow(found)) if found.record.kind.has(FlowKind::FORWARDED) => {
            found.release();
            Verdict::Next(Stage::Delivered)
        }
        Ok(Known::Flow(found)) => follow::send(packet, tables, &segment, &found.record, found.ways),
        Ok(Known::Gone(found)) => {
            let verdict = answer::unreachable(packet, tables, segment.place, Reason::BackendGone);
            if verdict != Verdict::Defer {
                found.release();
            }
            verdict
        }
        Ok(Known::Nothing) => Verdict::Next(Stage::Delivered),
        Err(reason) => ingress::drop_for(tables, reason),
    }
}

/// Drafts the flow to the backend that the packet's tag names.
#[inline(never)]
fn take<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // As in `fragments`: else the compiler hands over the bounds instead of the packet.
    packet.leave_by(0);
    let Ok::<Segment<F>, _>(segment) = parse::begun(packet, network) else {
        return ingress::drop_for(tables, Reason::Malformed);
    };
    let dialled = segment.dialled();
    let found = select::frontend(tables, &dialled).and_then(|frontend| {
        let choice = select::target(tables, &dialled, &frontend, tables.tag())?;
        Ok((frontend.service_port, choice))
    });
    let (service_port, choice) = match found {
        Ok(found) => found,
        Err(reason) => return ingress::drop_for(tables, reason),
    };
    let Some(draft) = tables.draft() else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    // The node that chose remembers whom.
    draft.sticky = 0;
    draft.midway = u32::from(follow::is_midway(&segment));
    write_flow(&mut draft.flow, &dialled, &choice, service_port, None);
    Verdict::Next(Stage::Open)
}

/// Drafts the flow that the packet opens. [`Stage::Open`] comes next if nothing is in its way.
#[inline(always)]
fn choose<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let segment = match parse::begun(packet, network) {
        Ok(segment) => segment,
        Err(reason) => return ingress::pass(tables, reason),
    };
    let dialled = segment.dialled();
    let origin = match packet.role() {
        Role::External => Origin::Outside,
        Role::Workload => Origin::Inside,
    };
    let frontend = match select::frontend(tables, &dialled) {
        Ok(frontend) => frontend,
        Err(reason) => return refuse(packet, tables, &segment, reason),
    };
    let choice = match select::backend(tables, &dialled, &frontend, origin) {
        Ok(choice) => choice,
        Err(reason) => return refuse(packet, tables, &segment, reason),
    };
    let tunnel = match origin {
        Origin::Outside => select::tunnel(&frontend, &choice),
        Origin::Inside => None,
    };
    let masquerade = if tunnel.is_some() {
        None
    } else {
        match masquerade(packet, tables, &dialled, &choice, origin) {
            Ok(masquerade) => masquerade,
            Err(verdict) => return verdict,
        }
    };
    let Some(draft) = tables.draft() else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    draft.sticky = u32::from(frontend.affinity != 0);
    draft.midway = u32::from(follow::is_midway(&segment));
    write_flow(&mut draft.flow, &dialled, &choice, frontend.service_port, masquerade);
    if let Some(kind) = tunnel {
        draft.flow.kind = kind;
        return Verdict::Next(Stage::Open);
    }
    if draft.flow.kind.has(FlowKind::ALIASED) {
        tables.set_attempt(0);
        return Verdict::Next(Stage::Alias);
    }
    Verdict::Next(Stage::Open)
}

/// Begins the flow that was drafted.
#[inline(always)]
fn begin<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Some(draft) = tables.draft() else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    let segment = match parse::begun(packet, network) {
        Ok(segment) => segment,
        Err(reason) => return ingress::drop_for(tables, reason),
    };
    match commit(tables, draft) {
        Ok(Some(ways)) => {
            follow::send(packet, tables, &segment, &Target::forward(&draft.flow), ways)
        }
        Ok(None) => {
            tables.set_attempt(0);
            Verdict::Next(Stage::Alias)
        }
        Err(reason) => ingress::drop_for(tables, reason),
    }
}

#[inline(never)]
fn begin_apart<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    begin(packet, tables, network)
}

/// What a new flow will be, on its way from one stage to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draft<F: Family> {
    pub flow: Flow<F>,
    /// 1 if the client is to stay with the backend.
    pub sticky: u32,
    /// 1 if the packet is of a connection's middle.
    pub midway: u32,
}

/// A flow that needs an alias: it gets one, and begins.
#[inline(always)]
pub fn alias<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    match alias::begin::<F, T>(tables) {
        Verdict::Next(Stage::Open) => go_on(packet, tables, network),
        verdict => verdict,
    }
}

/// The packet's flow is there now.
#[inline(never)]
fn go_on<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Ok::<Segment<F>, _>(segment) = parse::begun(packet, network) else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    match follow::forward(tables, &segment) {
        Ok(Known::Flow(found)) => follow::send(packet, tables, &segment, &found.record, found.ways),
        _ => ingress::drop_for(tables, Reason::CorruptTable),
    }
}

/// Whether it may have come through a tunnel. Asked late: Services, and aliases, may have the port.
#[inline(always)]
fn is_gue<F: Network>(segment: &Segment<F>) -> bool {
    segment.place.is_datagram() && segment.destination_port == GUE
}

/// What becomes of a packet that opens no flow.
#[inline(always)]
fn refuse<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    segment: &Segment<F>,
    reason: Reason,
) -> Verdict {
    match reason {
        Reason::NoFrontend if is_gue(segment) => Verdict::Next(Stage::Decapsulate),
        // Addresses of ours are also addresses of other things: a node has its ssh.
        Reason::NoFrontend => ingress::pass(tables, reason),
        Reason::NoBackend | Reason::NoSuchPort => {
            answer::unreachable(packet, tables, segment.place, reason)
        }
        _ => ingress::drop_for(tables, reason),
    }
}

/// The address that the backend is to see instead of the client's, if answers would not come back
/// through this node otherwise.
#[inline(always)]
fn masquerade<F: Network, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    dialled: &Dialled<F>,
    choice: &Choice<F>,
    origin: Origin,
) -> Result<Option<F::Address>, Verdict> {
    let backend = &choice.backend;
    let wanted = match origin {
        Origin::Outside => !backend.is_local(),
        // Nobody takes a packet from the network that comes from himself.
        Origin::Inside => backend.address == dialled.client,
    };
    if !wanted {
        return Ok(None);
    }
    let query: Query<F> =
        Query { to: backend.address, from: dialled.client, protocol: dialled.protocol, length: 0 };
    let device = match way::ask(packet, &query) {
        Route::Known(next) => next.device,
        Route::NoNeighbour(device) if packet.resolves() => device,
        Route::NoNeighbour(_) => {
            tables.count(Reason::NoNeighbour);
            return Err(Verdict::Defer);
        }
        Route::TooBig(mtu) => return Err(answer::later(packet, tables, Rejection::too_big(mtu))),
        Route::None => return Err(ingress::drop_for(tables, Reason::NoRoute)),
    };
    let device = tables.device(device);
    let address = device.map(|device| F::address_of(&device));
    match address {
        Some(address) if address != F::Address::default() => Ok(Some(address)),
        _ => Err(ingress::drop_for(tables, Reason::NoAlias)),
    }
}

/// Writes the flow field by field: whole, it would be put together on the stack first.
#[inline(always)]
fn write_flow<F: Network>(
    flow: &mut Flow<F>,
    dialled: &Dialled<F>,
    choice: &Choice<F>,
    service_port: u32,
    masquerade: Option<F::Address>,
) {
    let (alias, kind) = match masquerade {
        Some(address) => (address, FlowKind::ALIASED.and(FlowKind::FORWARDED)),
        None => (dialled.client, FlowKind::default()),
    };
    flow.client = dialled.client;
    flow.frontend = dialled.address;
    flow.backend = choice.backend.address;
    flow.alias = alias;
    flow.client_port = dialled.client_port;
    flow.frontend_port = dialled.port;
    flow.backend_port = choice.backend.port;
    flow.alias_port = dialled.client_port;
    flow.service_port = service_port;
    flow.backend_index = choice.index;
    flow.backend_generation = choice.backend.generation;
    flow.protocol = dialled.protocol;
    flow.kind = kind;
    flow.reserved = [0; 2];
}

/// Writes the flow into the table; `None` if it needs an alias to be told from another there.
#[inline(always)]
fn commit<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &Draft<F>,
) -> Result<Option<&'a Ways>, Reason> {
    let flow = &draft.flow;
    let now = tables.now();
    let (hash, buckets) = candidates(tables, flow)?;
    let [(_, one), (_, other)] = buckets;
    // Answers to what went through a tunnel don't come this way: they are nobody else's here.
    let answered = !flow.kind.has(FlowKind::TUNNELLED);
    if answered && alias::is_taken_in(tables, [one, other], hash, flow, now) {
        return Ok(None);
    }
    let claim = claim_one(buckets, hash, draft, now)?;
    claim.write(flow);
    account(tables, draft);
    Ok(Some(claim.publish(now)))
}

#[inline(always)]
pub fn claim<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &Draft<F>,
    now: Ticks,
) -> Result<Claim<'a, F>, Reason> {
    let (hash, buckets) = candidates(tables, &draft.flow)?;
    claim_one(buckets, hash, draft, now)
}

#[inline(always)]
fn claim_one<'a, F: Network>(
    buckets: [(u32, &'a FlowBucket<F>); 2],
    hash: FlowHash,
    draft: &Draft<F>,
    now: Ticks,
) -> Result<Claim<'a, F>, Reason> {
    let beginning = if draft.flow.protocol == protocol::UDP {
        Beginning::Datagram
    } else if draft.midway != 0 {
        Beginning::Midway
    } else {
        Beginning::Dial
    };
    flow_table::claim(buckets, hash, beginning, now).ok_or(Reason::FlowTableFull)
}

/// The buckets that a client's flow may be in, and their numbers.
#[expect(clippy::type_complexity, reason = "a name for it would say no more")]
#[inline(always)]
fn candidates<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    flow: &Flow<F>,
) -> Result<(FlowHash, [(u32, &'a FlowBucket<F>); 2]), Reason> {
    let hash = follow::client_hash(tables, flow.client, flow.client_port, flow.protocol);
    let [first, second] = hash.buckets(tables.flow_mask());
    let one = tables.flow_bucket(first).ok_or(Reason::CorruptTable)?;
    let other = tables.flow_bucket(second).ok_or(Reason::CorruptTable)?;
    Ok((hash, [(first, one), (second, other)]))
}

/// What a new flow is counted for, and remembered by.
#[inline(always)]
pub fn account<F: Network, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) {
    let flow = &draft.flow;
    tables.count_new_flow(flow.service_port, flow.backend_index);
    if draft.sticky != 0 {
        let (backend, generation) = (flow.backend_index, flow.backend_generation);
        affinity::remember(tables, flow.client, flow.service_port, backend, generation);
    }
}
