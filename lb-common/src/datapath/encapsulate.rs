//! A packet of a flow that goes through a tunnel: to its backend's node, as its client sent it.

use super::follow::{self, Target};
use super::parse::{self, Part, Place, Segment, Transport};
use super::tunnel::Outer;
use super::way::{self, Out, Query};
use super::{
    Direction, FamilyTables, Packet, Rejection, RejectionKind, Stage, Verdict, errors, fragments,
    ingress, tcp,
};
use crate::flow_table::Found;
use crate::hash;
use crate::header::{GUE, NetworkHeader, Udp, protocol};
use crate::layout::{Backend, FlowKind, Reason};

/// What is between the network headers of a tunnel in UDP.
const UDP: usize = size_of::<Udp>();

#[inline(always)]
pub fn packet<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let mut tunnel = Tunnel::default();
    let mut out = Out::default();
    // Each step has the stack for itself.
    let mut next = aim(packet, tables, network, &mut tunnel, &mut out);
    if next == Verdict::Next(Stage::FragmentIn) {
        next = aim_later(packet, tables, network, &mut tunnel, &mut out);
    }
    if next == Verdict::Next(Stage::ErrorIn) {
        next = aim_error(packet, tables, network, &mut tunnel, &mut out);
    }
    if next != Verdict::Next(Stage::Encapsulate) {
        return next;
    }
    let written = if tunnel.port == 0 {
        write::<0, F, P>(packet, network, &tunnel)
    } else {
        write::<UDP, F, P>(packet, network, &tunnel)
    };
    match written.and_then(|()| out.leave(packet)) {
        Ok(verdict) => verdict,
        Err(reason) => ingress::drop_for(tables, reason),
    }
}

/// From where to where a tunnel leads, and for whom the packet in it is.
struct Tunnel<F: Outer> {
    source: F::Address,
    node: F::Address,
    tag: u16,
    /// UDP's source port, the same for all packets of a flow; 0 if the tunnel is not in UDP.
    port: u16,
}

impl<F: Outer> Default for Tunnel<F> {
    #[inline(always)]
    fn default() -> Self {
        Self { source: F::Address::default(), node: F::Address::default(), tag: 0, port: 0 }
    }
}

/// A packet with the client's ends. [`Stage::FragmentIn`] and [`Stage::ErrorIn`] stand for those
/// that it must be found out for; the same stage comes next if tunnel and way are known.
#[inline(never)]
fn aim<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Verdict {
    let segment: Segment<F> = match parse::begun(packet, network) {
        Ok(segment) => segment,
        Err(Reason::Fragment) => return Verdict::Next(Stage::FragmentIn),
        Err(Reason::UnknownQuote) => return Verdict::Next(Stage::ErrorIn),
        Err(_) => return ingress::drop_for(tables, Reason::CorruptTable),
    };
    let Ok(Some(found)) = follow::find_dialled(tables, &segment) else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    match prepare(packet, tables, &segment.place, &segment, &found, tunnel, out) {
        Verdict::Next(Stage::Encapsulate) => {
            touch(tables, &found, segment.tcp_flags);
            Verdict::Next(Stage::Encapsulate)
        }
        // What is too big for the tunnel's way is told what fits through the tunnel.
        Verdict::Next(Stage::Reject) => {
            let Rejection { kind, mtu } = tables.rejection();
            if kind == RejectionKind::TOO_BIG {
                let overhead = overhead::<F>(&found.record);
                tables.set_rejection(Rejection::too_big(mtu.saturating_sub(overhead as u32)));
            }
            Verdict::Next(Stage::Reject)
        }
        verdict => verdict,
    }
}

/// A later fragment.
#[inline(never)]
fn aim_later<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Verdict {
    let found: Transport = F::transport::<true, P>(packet, network);
    if found.part != Part::Later {
        return ingress::drop_for(tables, Reason::CorruptTable);
    }
    let Some(segment) = fragments::recall::<F, P, T>(packet, tables, &found) else {
        return ingress::drop_for(tables, Reason::Fragment);
    };
    aim_unanswerable(packet, tables, &segment.place, &segment, tunnel, out)
}

/// An error about what the backend sent to the client.
#[inline(never)]
fn aim_error<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Verdict {
    let Some((place, answer)) = errors::about::<F, P>(packet, network) else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    aim_unanswerable(packet, tables, &place, &answer, tunnel, out)
}

/// What no error may answer.
#[inline(always)]
fn aim_unanswerable<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    place: &Place,
    segment: &Segment<F>,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Verdict {
    let Ok(Some(found)) = follow::find_dialled(tables, segment) else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    match prepare(packet, tables, place, segment, &found, tunnel, out) {
        Verdict::Next(Stage::Reject) => Verdict::Drop,
        verdict => verdict,
    }
}

/// How much longer a packet gets.
#[inline(always)]
fn overhead<F: Outer>(target: &Target<F>) -> usize {
    size_of::<F::Header>() + if target.kind.has(FlowKind::IN_UDP) { UDP } else { 0 }
}

/// Finds the tunnel, and the way to its end.
#[inline(always)]
fn prepare<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    place: &Place,
    segment: &Segment<F>,
    found: &Found<'_, Target<F>>,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Verdict {
    let target = &found.record;
    let rewrite = &target.rewrite;
    let backend: Option<Backend<F::Address>> = tables.backend(rewrite.backend_index);
    let Some(backend) = backend.filter(|b| b.generation == target.generation) else {
        return ingress::drop_for(tables, Reason::BackendGone);
    };
    // Whose node is not known any more can't be reached.
    if backend.node == F::Address::default() {
        return ingress::drop_for(tables, Reason::NoRoute);
    }
    let in_udp = target.kind.has(FlowKind::IN_UDP);
    let query: Query<F> = Query {
        to: backend.node,
        from: F::Address::default(),
        protocol: if in_udp { protocol::UDP } else { F::IN_IP },
        length: way::network_length(packet, *place) + overhead::<F>(target) as u32,
    };
    match way::out(packet, tables, found.ways, Direction::Forward, &query) {
        Ok(way) => *out = way,
        Err(verdict) => return verdict,
    }
    let Some(device) = tables.device(out.device()) else {
        return ingress::drop_for(tables, Reason::NoRoute);
    };
    tunnel.source = F::address_of(&device);
    if tunnel.source == F::Address::default() {
        return ingress::drop_for(tables, Reason::NoAlias);
    }
    tunnel.node = backend.node;
    tunnel.tag = hash::backend_tag(backend.address, backend.port);
    tunnel.port = if in_udp { source_port(segment) } else { 0 };
    let bytes = packet.length();
    tables.count_packet(rewrite.service_port, rewrite.backend_index, Direction::Forward, bytes);
    Verdict::Next(Stage::Encapsulate)
}

/// By which routers on the way, and the node's network card, tell flows apart: one of those that
/// are nobody's.
#[inline(always)]
fn source_port<F: Outer>(segment: &Segment<F>) -> u16 {
    let Segment { source, source_port, destination, destination_port, place, .. } = *segment;
    let hash =
        hash::spread::<F>(source, source_port, destination, destination_port, place.protocol);
    0xc000 | hash as u16
}

/// The client's packets are all that is seen of the flow: they have to tell what the backend's
/// would.
#[inline(always)]
fn touch<F: Outer, T: FamilyTables<F>>(tables: &T, found: &Found<'_, Target<F>>, tcp_flags: u8) {
    found.touch(tables.now(), tcp::one_way_state(found.state(), tcp_flags));
}

/// `BETWEEN` outer and inner network header there are so many octets: none, or UDP's header.
#[inline(never)]
fn write<const BETWEEN: usize, F: Outer, P: Packet>(
    packet: &mut P,
    network: usize,
    tunnel: &Tunnel<F>,
) -> Result<(), Reason> {
    let inner: &mut F::Header = packet.header_mut(network).ok_or(Reason::Unwritable)?;
    inner.decrement_hop_limit();
    let (class, length) = (F::class(inner), inner.length() as u16);
    let protocol = if BETWEEN == 0 { F::IN_IP } else { protocol::UDP };
    let payload = length.wrapping_add(BETWEEN as u16);
    let room = size_of::<F::Header>() + BETWEEN;
    packet.make_room::<F>(network, room).ok_or(Reason::Unwritable)?;
    let outer: &mut F::Header = packet.header_mut(network).ok_or(Reason::Unwritable)?;
    *outer = F::header(tunnel.source, tunnel.node, protocol, payload);
    F::set_class(outer, class);
    F::set_tag(outer, tunnel.tag);
    if BETWEEN != 0 {
        let udp = network + size_of::<F::Header>();
        let udp: &mut Udp = packet.header_mut(udp).ok_or(Reason::Unwritable)?;
        udp.ports.source = tunnel.port.to_be_bytes();
        udp.ports.destination = GUE.to_be_bytes();
        udp.length = payload.to_be_bytes();
        // The inner packet has its own.
        udp.checksum = [0; 2];
    }
    Ok(())
}
