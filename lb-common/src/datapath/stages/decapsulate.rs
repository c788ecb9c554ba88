//! A packet that may have come through a tunnel, from another node to a backend on this one.
//!
//! Other software uses tunnels between nodes, too: packets that are not Millrace's stay unmodified.

use super::{fragment, icmp_error, probe};
use crate::datapath::arrival::{Arrival, Mark};
use crate::datapath::forward::{own, stored};
use crate::datapath::function::{Function, PacketFunction, function_result};
use crate::datapath::handover::NextStage;
use crate::datapath::segment::Segment;
use crate::datapath::select::{self, Connection};
use crate::datapath::tables::{Counters, FamilyTables};
use crate::datapath::verdict::{Verdict, drop_for, pass_for};
use crate::datapath::wire::outer::{self, KEYED, Outer, UDP};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Part};
use crate::header::{KeyedGue, NetworkHeader, protocol};
use crate::layout::{Reason, TunnelKey};
use crate::verifier;

#[inline(always)]
pub fn decapsulate_packet<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let Some(header) = packet.header::<F::Header>(network) else {
        return pass_for(tables, Reason::Malformed);
    };
    // IP in IP has no room for a key. If the cluster has one, the packet is not from its nodes.
    let is_keyed = tables.tunnel_key(TunnelKey::Current) != 0;
    // Only UDP to the tunnel port comes to this stage.
    if F::is_plain(header, protocol::UDP) {
        if is_keyed {
            decapsulate_through::<KEYED, F, P, T>(packet, tables, network)
        } else {
            decapsulate_through::<UDP, F, P, T>(packet, tables, network)
        }
    } else if F::is_plain(header, F::IN_IP) && !is_keyed {
        decapsulate_through::<0, F, P, T>(packet, tables, network)
    } else {
        Verdict::Next(NextStage::unserved(tables, Reason::UnknownProtocol))
    }
}

/// `BETWEEN`: number of octets between the outer and the inner network header.
#[inline(always)]
fn decapsulate_through<const BETWEEN: usize, F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let inner = network + size_of::<F::Header>() + BETWEEN;
    match check_outer_headers::<BETWEEN, F, P, T>(packet, tables, network) {
        OuterHeaders::OfTunnel => {}
        OuterHeaders::Elsewhere => {
            return Verdict::Next(NextStage::unserved(tables, Reason::UnknownProtocol));
        }
        OuterHeaders::Foreign => return Verdict::Decline,
        OuterHeaders::Probe => {
            return probe::return_to_node::<true, F, P, T>(packet, tables, network);
        }
    }
    let Some(draft) = tables.draft() else { return drop_for(tables, Reason::CorruptTable) };
    let arrival = draft.arrival;
    let next = match Inner::call::<F, P, T>(packet, tables, inner) {
        Inner::Passed => return Verdict::Decline,
        Inner::Returned if BETWEEN == KEYED => {
            return probe::return_to_node::<false, F, P, T>(packet, tables, network);
        }
        Inner::Dropped | Inner::Returned => return Verdict::Drop,
        Inner::Fragment => NextStage::FRAGMENT_IN,
        Inner::Delivered => NextStage::delivered(tables, arrival),
        Inner::Error => match check_error::<F, P, T>(packet, tables, inner) {
            Ok(()) => NextStage::error_in(tables, arrival),
            Err(verdict) => return verdict,
        },
    };
    match remove_outer_headers::<BETWEEN, F, P>(packet, network) {
        Ok(()) => Verdict::Next(next),
        Err(reason) => drop_for(tables, reason),
    }
}

/// What outer headers are.
enum OuterHeaders {
    /// Of a tunnel of Millrace. The draft has the packet's [`Arrival`].
    OfTunnel,
    /// Of a probe, which is to be sent back.
    Probe,
    /// To an address that is not this node's.
    Elsewhere,
    /// Of something else; the reason has been counted.
    Foreign,
}

impl OuterHeaders {
    #[inline(always)]
    fn foreign_for<T: Counters>(tables: &T, reason: Reason) -> Self {
        tables.count(reason);
        Self::Foreign
    }
}

#[inline(never)]
fn check_outer_headers<const BETWEEN: usize, F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> OuterHeaders {
    packet.keep_whole();
    let Some(header) = packet.header::<F::Header>(network) else {
        return OuterHeaders::foreign_for(tables, Reason::Malformed);
    };
    if !own::is_own(packet, tables, header.destination()) {
        return OuterHeaders::Elsewhere;
    }
    if !tables.is_peer(header.source().into()) {
        return OuterHeaders::foreign_for(tables, Reason::NotAPeer);
    }
    let tag = F::tag(header);
    let mut mark = Mark::NONE;
    if BETWEEN == KEYED {
        match keyed::<F, P, T>(packet, tables, network) {
            Keyed::Packet(found) => mark = found,
            Keyed::Probe => return OuterHeaders::Probe,
            Keyed::Wrong => return OuterHeaders::foreign_for(tables, Reason::WrongTunnelKey),
        }
    }
    if let Some(draft) = tables.draft() {
        draft.arrival = Arrival::by_tunnel(mark, tag);
    }
    OuterHeaders::OfTunnel
}

/// What outer headers with a key carry.
enum Keyed {
    Packet(Mark),
    Probe,
    /// No key, or none of this cluster.
    Wrong,
}

#[inline(always)]
fn keyed<F: Outer, P: Packet, T: FamilyTables<F>>(packet: &P, tables: &T, network: usize) -> Keyed {
    let Some(gue) = packet.header::<KeyedGue>(network + size_of::<F::Header>() + UDP) else {
        return Keyed::Wrong;
    };
    let key = u64::from_be_bytes(gue.key);
    let [none, mark] = gue.flags;
    let mark = Mark(mark);
    let is_right = none == 0
        && key != 0
        && (key == tables.tunnel_key(TunnelKey::Current)
            || key == tables.tunnel_key(TunnelKey::Other));
    if is_right && gue.control == KeyedGue::CONTROL && gue.protocol == F::IN_IP && mark.is_valid() {
        Keyed::Packet(mark)
    } else if is_right
        && mark == Mark::NONE
        && gue.control == KeyedGue::MESSAGE
        && gue.protocol == KeyedGue::PROBE
    {
        Keyed::Probe
    } else {
        Keyed::Wrong
    }
}

function_result! {
    /// What becomes of a packet from a tunnel, by its inner headers.
    pub enum Inner {
        /// The packet passes; the reason has been counted.
        Passed,
        /// The packet is dropped; the reason has been counted.
        Dropped,
        /// The packet belongs to a connection about which another node asks, and which is not known here.
        Returned,
        Fragment,
        Delivered,
        /// An ICMP packet, which needs a closer look.
        Error,
    }
    otherwise Dropped
}

impl Inner {
    /// Runs [`PacketFunction::JudgeInner`].
    #[inline(always)]
    fn call<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
        packet: &P,
        tables: &T,
        inner: usize,
    ) -> Self {
        Self::from_number(packet.call::<F>(PacketFunction::JudgeInner, inner, || {
            judge_inner::<F, P, T>(packet, tables, inner).number()
        }))
    }

    #[inline(always)]
    fn passed_for<T: Counters>(tables: &T, reason: Reason) -> Self {
        tables.count(reason);
        Self::Passed
    }

    #[inline(always)]
    fn dropped_for<T: Counters>(tables: &T, reason: Reason) -> Self {
        tables.count(reason);
        Self::Dropped
    }
}

/// The function [`PacketFunction::JudgeInner`].
#[inline(always)]
pub fn judge_inner<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    inner: usize,
) -> Inner {
    let ours = packet
        .header::<F::Header>(inner)
        .is_some_and(|header| tables.may_be_destination(header.destination()));
    if !ours {
        return Inner::passed_for(tables, Reason::UnknownProtocol);
    }
    let found = F::transport::<true, P>(packet, inner);
    match found.part {
        Part::Later => {
            let is_recalled = packet.call::<F>(PacketFunction::Recall, inner, || {
                u32::from(fragment::recall_fragment_ports::<F, P, T>(packet, tables, inner))
            }) != 0;
            return if is_recalled && tables.call(Function::IsKnown) != 0 {
                Inner::Fragment
            } else {
                Inner::dropped_for(tables, Reason::Fragment)
            };
        }
        Part::Malformed => return Inner::passed_for(tables, Reason::UnknownProtocol),
        Part::Whole | Part::First => {}
    }
    let segment: Segment<F> = match parse::segment_of_packet(packet, found.headers) {
        Parsed::Segment(segment) => segment,
        Parsed::Icmp => return Inner::Error,
        _ => return Inner::passed_for(tables, Reason::UnknownProtocol),
    };
    match select::find_frontend(tables, &Connection::by(&segment)) {
        Ok(_) => {}
        // Outside of the tunnel the stack would route it back out.
        Err(reason @ Reason::NoSuchPort) => return Inner::dropped_for(tables, reason),
        Err(_) => return Inner::passed_for(tables, Reason::UnknownProtocol),
    }
    if found.part == Part::First {
        fragment::store_fragment_ports(tables, &found, &segment);
    }
    let Some(draft) = tables.draft() else {
        return Inner::dropped_for(tables, Reason::CorruptTable);
    };
    if !draft.arrival.mark().is_question() {
        return Inner::Delivered;
    }
    stored::store_segment(tables, &segment);
    if tables.call(Function::IsKnown) == 0 {
        return Inner::Returned;
    }
    tables.count(Reason::Recognized);
    Inner::Delivered
}

/// An ICMP error from a tunnel is about a packet of a flow on this node, or not valid.
#[inline(always)]
fn check_error<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &P,
    tables: &T,
    inner: usize,
) -> Result<(), Verdict> {
    if packet.call::<F>(PacketFunction::ReadError, inner, || {
        icmp_error::read_error::<F, P, T>(packet, tables, inner)
    }) != 0
    {
        return Err(pass_for(tables, Reason::UnknownProtocol));
    }
    if tables.call(Function::IsKnown) == 0 {
        return Err(drop_for(tables, Reason::UnknownQuote));
    }
    Ok(())
}

/// Removes the outer headers.
#[inline(never)]
fn remove_outer_headers<const BETWEEN: usize, F: Outer, P: Packet>(
    packet: &mut P,
    network: usize,
) -> Result<(), Reason> {
    let length = size_of::<F::Header>() + BETWEEN;
    let outer: &F::Header = packet.header(network).ok_or(Reason::Unwritable)?;
    let outer_class = F::class(outer);
    verifier::forget_memory();
    let inner: &mut F::Header = packet.header_mut(network + length).ok_or(Reason::Unwritable)?;
    let class = F::class(inner);
    let after = outer::class_after(class, outer_class).ok_or(Reason::Congestion)?;
    if after != class {
        F::set_class(inner, after);
    }
    packet.close_up::<F>(network, length).ok_or(Reason::Unwritable)
}
