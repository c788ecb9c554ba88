//! A packet that no port of a Service takes. If its address is one that Millrace assigned to load balancers, the
//! address behaves like that of a host: an echo request is answered, an unknown port refused, everything
//! else dropped. The stack would hand the packet to a server of this node, or route it back to the router that
//! sent it.
//!
//! # Invariants
//! - Anyone can send such packets, with any source. An echo reply is as long as its request; nothing is sent
//!   to a group, or for a frame from or to one; nothing that may be an answer gets one. Only the first fragment
//!   of a packet is refused, and no fragment gets an echo reply. [`Answers`] limits what one source gets, and
//!   all together.
//! - An answer leaves by the interface on which its request arrived, to the machine that sent it.
//! - A node that should not have the address, or may not serve the client, sends nothing.

use core::mem::offset_of;

use crate::checksum::Delta;
use crate::datapath::allowance::{Answer, Answers};
use crate::datapath::forward::refuse;
use crate::datapath::handover::Unserved;
use crate::datapath::segment::Headers;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::link;
use crate::datapath::wire::made::{Answering, HOP_LIMIT};
use crate::datapath::wire::outer::Outer;
use crate::datapath::wire::packet::{Packet, Role};
use crate::family::Family;
use crate::header::{Ethernet, Icmp, NetworkHeader};
use crate::layout::{Frontend, FrontendKey, FrontendKind, NeighbourEvent, Reason, Silence};

/// Answers, drops or passes a packet that no port of a Service takes.
#[inline(always)]
pub fn process_unserved<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    unserved: Unserved,
) -> Verdict {
    let reason = unserved.reason();
    let Some(header) = packet.header::<F::Header>(network) else {
        return pass_for(tables, reason);
    };
    let (source, destination) = (header.source(), header.destination());
    let Some(entry) = tables.frontend(&FrontendKey::<F>::new(destination, 0, 0)) else {
        return pass_for(tables, reason);
    };
    let is_of_load_balancer = entry.kind == FrontendKind::LoadBalancer as u8;
    let is_refused = reason == Reason::NoSuchPort;
    if !(is_of_load_balancer || is_refused && entry.kind == FrontendKind::ClusterIp as u8) {
        return pass_for(tables, reason);
    }
    let headers = Headers { network, transport: 0, protocol: unserved.protocol() };
    if !is_of_load_balancer {
        return refuse::refuse_without_backend(packet, tables, headers, reason);
    }
    if let Some(why) = why_silent(packet, tables, &entry, source) {
        return drop_for(tables, why);
    }
    let is_question = is_refused || is_echo_request::<F, P>(packet, network);
    if !is_question || !may_be_answered::<F, P>(packet, network) {
        return drop_for(tables, Reason::Unserved);
    }
    if !refuse::can_answer(packet, tables) {
        return Verdict::Defer;
    }
    let number = tables.settings().secret.number_of_host::<F>(source, Answers::SOURCES);
    let answer = if is_refused { Answer::Refusal } else { Answer::Echo };
    if !tables.may_answer(answer, number) {
        return drop_for(tables, Reason::RateLimited);
    }
    if is_refused {
        return refuse::refuse_without_backend(packet, tables, headers, reason);
    }
    match write_echo_reply::<F, P>(packet, network) {
        Some(()) => {
            tables.count_neighbour(NeighbourEvent::Echo);
            Verdict::Transmit
        }
        None => drop_for(tables, Reason::Unwritable),
    }
}

/// Why a client gets no answer from the address of this entry.
#[inline(always)]
fn why_silent<F: Family, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    entry: &Frontend,
    client: F::Address,
) -> Option<Reason> {
    // From inside, every node serves it, as if the packet had left the cluster and come back.
    let is_elsewhere = entry.silence == Silence::Outside as u8 && packet.role() == Role::External;
    if entry.silence == Silence::Always as u8 {
        Some(Reason::Unserved)
    } else if is_elsewhere {
        Some(Reason::NoLocalBackend)
    } else if entry.restricted != 0 && !tables.is_source_allowed(entry.service_port, client) {
        Some(Reason::SourceNotAllowed)
    } else {
        None
    }
}

/// Whether it is a whole echo request without options, as long as its header says at least.
#[inline(always)]
fn is_echo_request<F: Outer, P: Packet>(packet: &P, network: usize) -> bool {
    let transport = size_of::<F::Header>();
    let Some(header) = packet.header::<F::Header>(network) else { return false };
    let (length, end) = (header.length(), network as u32 + header.length());
    F::is_plain(header, F::ICMP)
        && F::is_whole(header)
        && length >= (transport + size_of::<Icmp>()) as u32
        && packet.length_if(end) >= end
        && packet
            .header::<Icmp>(network + transport)
            .is_some_and(|icmp| icmp.kind == F::ECHO_REQUEST && icmp.code == 0)
}

/// Whether an answer would go to one host, and not to the address itself. A frame to a group comes to all nodes,
/// which would all answer, and one from a group would be answered to it.
#[inline(always)]
fn may_be_answered<F: Answering, P: Packet>(packet: &P, network: usize) -> bool {
    let is_of_group = !packet.is_raw()
        && packet
            .header::<Ethernet>(0)
            .is_none_or(|it| (it.destination[0] | it.source[0]) & 1 != 0);
    let is_from_host = packet.header::<F::Header>(network).is_some_and(|header| {
        F::may_receive_errors(header.source()) && header.source() != header.destination()
    });
    is_from_host && !is_of_group
}

/// Makes an echo request its own reply.
#[inline(always)]
fn write_echo_reply<F: Outer, P: Packet>(packet: &mut P, network: usize) -> Option<()> {
    link::send_back(packet)?;
    // Swapped addresses change no checksum.
    let header: &mut F::Header = packet.header_mut(network)?;
    let (source, destination) = (header.source(), header.destination());
    header.set_source(destination);
    header.set_destination(source);
    packet.set_hop_limit::<F>(network, HOP_LIMIT)?;
    let at = network + size_of::<F::Header>();
    let icmp: &mut Icmp = packet.header_mut(at)?;
    icmp.kind = F::ECHO_REPLY;
    let change = Delta::of_port(u16::from(F::ECHO_REQUEST) << 8, u16::from(F::ECHO_REPLY) << 8);
    packet.update_transport_checksum::<F>(
        at + offset_of!(Icmp, checksum),
        Delta::default(),
        change,
        false,
    )
}
