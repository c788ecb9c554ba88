//! Direct delivery: packets between clients and pods of this node bypass the stack, in both
//! directions.
//!
//! In both, because connection tracking in the stack judges a packet by those before it. It would
//! take a reply whose request it has not seen for invalid, or for a new connection of the pod, whose
//! source address the node replaces by its own.
//!
//! # Invariants
//! - The routing tables are asked for each packet: an interface never gets packets of the pod that
//!   has taken its address over.
//! - A packet that cannot be delivered goes up the stack, as without direct delivery.

use super::{next_hop, rewrite};
use crate::branchless;
use crate::datapath::carried::Decision;
use crate::datapath::route::{NextHop, Query, Route};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict, drop_for};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Segment};
use crate::header::{Ethernet, NetworkHeader};
use crate::layout::{Backend, Device, FlowKind, Reason};
use crate::word::set_link_address;

/// Whether the packets of a decision's flow may bypass the stack.
#[inline(always)]
pub fn is_direct<F: PacketFamily, T: FamilyTables<F>>(tables: &T, decision: &Decision<F>) -> bool {
    if decision.kind.has(FlowKind::FORWARDED.and(FlowKind::DELIVERED)) {
        return false;
    }
    let backend: Option<Backend<F::Address>> = tables.backend(decision.backend_index);
    backend.is_some_and(|backend| backend.is_local())
}

/// Translates a request for a backend on this node, or for one that the stack reaches, and sends it.
#[inline(always)]
pub fn send_request<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Verdict {
    match rewrite::whole(packet, tables, segment, decision) {
        Ok(()) if !is_direct(tables, decision) => Verdict::Pass,
        Ok(()) if packet.resolves() => Verdict::Next(Stage::Deliver),
        Ok(()) => Verdict::Deliver,
        Err(reason) => drop_for(tables, reason),
    }
}

/// Delivers a packet that was translated for a backend on this node.
#[inline(always)]
pub fn deliver<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Otherwise no packet comes here, and the verifier removes the rest.
    if !tables.settings().is_direct() {
        return Verdict::Pass;
    }
    let Parsed::Segment::<F>(segment) = parse::parse_packet(packet, network) else {
        return Verdict::Pass;
    };
    if !may_bypass::<F, P>(packet, network) {
        return Verdict::Pass;
    }
    let ends = (segment.source, segment.destination);
    let Some(way) = find_way(packet, tables, &segment, ends) else { return Verdict::Pass };
    if !is_pod(&way.device) {
        return Verdict::Pass;
    }
    match leave::<F, P>(packet, network, &way) {
        Some(()) => way.verdict(),
        None => drop_for(tables, Reason::Unwritable),
    }
}

/// Whether a packet of a pod may be a reply of a backend.
#[inline(never)]
pub fn may_be_reply<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> bool {
    // Otherwise the compiler passes the packet's bounds instead of the packet: plain numbers, to
    // the verifier.
    packet.leave_by(0);
    let Parsed::Segment::<F>(segment) = parse::parse_packet(packet, network) else {
        return false;
    };
    tables.may_be_source(segment.source, segment.source_port, segment.headers.protocol)
}

/// The way of a packet past the stack.
pub struct Way {
    next: NextHop,
    device: Device,
    /// Whether the stack resolves the next hop.
    unresolved: bool,
}

impl Way {
    #[inline(always)]
    fn verdict(&self) -> Verdict {
        if self.unresolved {
            Verdict::Resolve
        } else if is_pod(&self.device) {
            Verdict::Deliver
        } else {
            Verdict::Redirect
        }
    }
}

/// Finds the way of a reply, which arrives from its pod; `None`: the stack has to send it.
#[inline(always)]
pub fn way_back<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
) -> Option<Way> {
    let network = segment.headers.network;
    // Requests to a pod behind another kind of interface pass the stack, so replies must, too.
    if !may_bypass::<F, P>(packet, network) || !is_pod(&tables.device(packet.device())?) {
        return None;
    }
    // Routed by the Service's address, like replies of backends on other nodes. The stack would route
    // it by the pod's.
    let ends = (decision.source.address, decision.destination.address);
    let way = find_way(packet, tables, segment, ends)?;
    // Requests from an interface without link-layer headers pass the stack.
    (way.device.link_address != [0; 6]).then_some(way)
}

#[inline(always)]
fn find_way<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    segment: &Segment<F>,
    (from, to): (F::Address, F::Address),
) -> Option<Way> {
    let query: Query<F> = Query {
        to,
        from,
        protocol: segment.headers.protocol,
        length: next_hop::network_length::<F, P>(packet, segment.headers.network),
    };
    let (next, unresolved) = match next_hop::ask(packet, &query) {
        Route::Known { next, .. } => (next, false),
        Route::NoNeighbour(device) => (NextHop { device, neighbour: [0; 6] }, true),
        Route::TooBig(_) | Route::None => return None,
    };
    let device = tables.device(next.device)?;
    (query.length <= device.mtu).then_some(Way { next, device, unresolved })
}

/// Translates a reply, and sends it this way.
#[inline(always)]
pub fn send_back<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    segment: &Segment<F>,
    decision: &Decision<F>,
    way: &Way,
) -> Verdict {
    let sent = rewrite::whole(packet, tables, segment, decision).and_then(|()| {
        leave::<F, P>(packet, segment.headers.network, way).ok_or(Reason::Unwritable)
    });
    match sent {
        Ok(()) => way.verdict(),
        Err(reason) => drop_for(tables, reason),
    }
}

#[inline(always)]
fn is_pod(device: &Device) -> bool {
    device.flags & Device::POD != 0
}

/// Whether a packet is one that the stack would only forward: in a frame for this machine, without
/// tags, and with hops left.
#[inline(always)]
fn may_bypass<F: PacketFamily, P: Packet>(packet: &P, network: usize) -> bool {
    // Each access starts from the packet's start again: the compiler knows that the packet is long
    // enough, but the verifier does not.
    branchless::forget();
    let is_here = packet.is_received()
        && packet.header::<Ethernet>(0).is_some_and(|ethernet| ethernet.destination[0] & 1 == 0);
    is_here
        && !packet.is_raw()
        && network == size_of::<Ethernet>()
        && packet.header::<F::Header>(network).is_some_and(|header| header.hop_limit() > 1)
}

/// Writes what changes at a hop.
#[inline(always)]
fn leave<F: PacketFamily, P: Packet>(packet: &mut P, network: usize, way: &Way) -> Option<()> {
    packet.decrement_hop_limit::<F>(network)?;
    packet.leave_by(way.next.device);
    branchless::forget();
    let ethernet: &mut Ethernet = packet.header_mut(0)?;
    set_link_address(&mut ethernet.source, way.device.link_address);
    set_link_address(&mut ethernet.destination, way.next.neighbour);
    Some(())
}
