//! Sends a packet through a tunnel to its backend's node, unmodified.

use crate::conntrack;
use crate::datapath::carried::Encapsulation;
use crate::datapath::forward::next_hop::{self, Out};
use crate::datapath::handover::{NextStage, given_rejection};
use crate::datapath::rejection::{Rejection, RejectionKind};
use crate::datapath::route::Query;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict, drop_for};
use crate::datapath::wire::outer::{KEYED, Outer, UDP};
use crate::datapath::wire::packet::Packet;
use crate::hash;
use crate::header::{GUE, KeyedGue, NetworkHeader, Udp, protocol};
use crate::layout::{Backend, Direction, FlowKind, Reason, TunnelKey};

#[inline(always)]
pub fn encapsulate_packet<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    encapsulation: &Encapsulation,
) -> Verdict {
    let mut tunnel = Tunnel::default();
    let mut out = Out::default();
    // Each step has its own stack frame.
    if let Err(verdict) =
        find_tunnel_end(packet, tables, network, encapsulation, &mut tunnel, &mut out)
    {
        return verdict;
    }
    let written = match octets_between_headers(tunnel.port != 0, tunnel.key) {
        KEYED => write_outer_headers::<KEYED, F, P>(packet, network, &tunnel),
        UDP => write_outer_headers::<UDP, F, P>(packet, network, &tunnel),
        _ => write_outer_headers::<0, F, P>(packet, network, &tunnel),
    };
    match written.and_then(|()| out.leave(packet)) {
        Ok(verdict) => verdict,
        Err(reason) => drop_for(tables, reason),
    }
}

/// The ends of a tunnel, and the backend of the packet in it.
struct Tunnel<F: Outer> {
    source: F::Address,
    node: F::Address,
    tag: u16,
    /// UDP's source port, the same for all packets of a flow; 0 if the tunnel is not in UDP.
    port: u16,
    /// 0: none.
    key: u64,
    /// The number of the question that the packet is ([`super::earlier`]); 0: it is none.
    asked: u8,
}

impl<F: Outer> Default for Tunnel<F> {
    #[inline(always)]
    fn default() -> Self {
        let (source, node) = Default::default();
        Self { source, node, tag: 0, port: 0, key: 0, asked: 0 }
    }
}

/// Number of octets between the network headers. IP in IP has no room for a key.
#[inline(always)]
fn octets_between_headers(in_udp: bool, key: u64) -> usize {
    if key != 0 {
        KEYED
    } else if in_udp {
        UDP
    } else {
        0
    }
}

/// Finds the tunnel, and the next hop to its end.
#[inline(never)]
fn find_tunnel_end<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    network: usize,
    encapsulation: &Encapsulation,
    tunnel: &mut Tunnel<F>,
    out: &mut Out,
) -> Result<(), Verdict> {
    let backend: Option<Backend<F::Address>> = tables.backend(encapsulation.backend_index);
    let Some(backend) = backend.filter(|b| b.generation as u16 == encapsulation.backend_generation)
    else {
        return Err(drop_for(tables, Reason::BackendGone));
    };
    // A backend whose node is no longer known cannot be reached.
    if backend.node == F::Address::default() {
        return Err(drop_for(tables, Reason::NoRoute));
    }
    let key = tables.tunnel_key(TunnelKey::Current);
    let in_udp = encapsulation.kind.has(FlowKind::IN_UDP) || key != 0;
    let overhead = (size_of::<F::Header>() + octets_between_headers(in_udp, key)) as u32;
    let query: Query<F> = Query {
        to: backend.node,
        from: F::Address::default(),
        protocol: if in_udp { protocol::UDP } else { F::IN_IP },
        length: next_hop::network_length::<F, P>(packet, network) + overhead,
    };
    let hops = if encapsulation.tracked != 0 {
        let bucket = tables.flow_bucket(encapsulation.location.bucket());
        bucket.map(|bucket| conntrack::hops_at(bucket, encapsulation.location))
    } else {
        None
    };
    match next_hop::find_next_hop(packet, tables, hops, Direction::Forward, &query) {
        Ok(found) => *out = found,
        Err(verdict) => {
            return Err(verdict_without_hop::<F, T>(tables, encapsulation, overhead, verdict));
        }
    }
    let Some(device) = tables.device(out.device()) else {
        return Err(drop_for(tables, Reason::NoRoute));
    };
    tunnel.source = F::address_of(&device);
    if tunnel.source == F::Address::default() {
        return Err(drop_for(tables, Reason::NoSnatPort));
    }
    tunnel.node = backend.node;
    tunnel.tag = hash::backend_tag(backend.address, backend.port);
    tunnel.port = if in_udp { encapsulation.source_port } else { 0 };
    tunnel.key = key;
    tunnel.asked = encapsulation.kind.asked();
    let Encapsulation { service_port, backend_index, .. } = *encapsulation;
    let bytes = packet.length_if(next_hop::claimed_length::<F, P>(packet, network));
    tables.count_packet(service_port, backend_index, Direction::Forward, bytes);
    Ok(())
}

/// The verdict for a packet that has no next hop, or does not fit.
#[inline(always)]
fn verdict_without_hop<F: Outer, T: FamilyTables<F>>(
    tables: &T,
    encapsulation: &Encapsulation,
    overhead: u32,
    verdict: Verdict,
) -> Verdict {
    let is_rejected = matches!(verdict, Verdict::Next(next) if next.stage() == Stage::Reject);
    if !is_rejected {
        return verdict;
    }
    if encapsulation.errors_allowed == 0 {
        return Verdict::Drop;
    }
    // The sender of a packet that is too big gets the MTU inside the tunnel.
    let Rejection { kind, mtu } = given_rejection(tables);
    if kind == RejectionKind::TOO_BIG {
        let rejection = Rejection::too_big(mtu.saturating_sub(overhead));
        return Verdict::Next(NextStage::reject(tables, rejection));
    }
    verdict
}

/// `BETWEEN`: number of octets between the outer and the inner network header: 0, `UDP` or `KEYED`.
#[inline(never)]
fn write_outer_headers<const BETWEEN: usize, F: Outer, P: Packet>(
    packet: &mut P,
    network: usize,
    tunnel: &Tunnel<F>,
) -> Result<(), Reason> {
    packet.decrement_hop_limit::<F>(network).ok_or(Reason::Unwritable)?;
    let inner: &F::Header = packet.header(network).ok_or(Reason::Unwritable)?;
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
    if BETWEEN == KEYED {
        let gue = network + size_of::<F::Header>() + UDP;
        let gue: &mut KeyedGue = packet.header_mut(gue).ok_or(Reason::Unwritable)?;
        gue.control = KeyedGue::CONTROL;
        gue.protocol = F::IN_IP;
        gue.flags = [0, tunnel.asked];
        gue.key = tunnel.key.to_be_bytes();
    }
    Ok(())
}
