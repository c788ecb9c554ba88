//! A packet of a pod that may be a reply, if packets bypass the stack ([`direct`]).

use super::ingress;
use crate::datapath::forward::lookup::{self, FlowOf};
use crate::datapath::forward::{direct, untracked};
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict};
use crate::datapath::wire::outer::Outer;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed, Segment};
use crate::layout::Direction;

/// Sends a reply to its client. Every other packet is handled like any that a pod sends.
#[inline(always)]
pub fn send<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // Otherwise no packet comes here, and the verifier removes the rest.
    if !tables.settings().is_direct() {
        return Verdict::Pass;
    }
    match send_directly::<F, P, T>(packet, tables, network) {
        Some(verdict) => verdict,
        None => Verdict::Next(Stage::NoReply),
    }
}

/// A packet that is no reply, or a reply that the stack has to send.
#[inline(always)]
pub fn arrive<F: Outer, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    // As above.
    if !tables.settings().is_direct() {
        return Verdict::Pass;
    }
    ingress::arrive_to_service::<F, P, T>(packet, tables, network)
}

/// `None`: it is not a reply, or the stack has to send it. Then neither packet nor flow has changed.
#[inline(always)]
fn send_directly<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Option<Verdict> {
    let Parsed::Segment::<F>(segment) = parse::parse_packet(packet, network) else { return None };
    let found = find(tables, &segment);
    let decision = match &found {
        Some(found) => found.record,
        None => untracked::of_reply(tables, &segment)?,
    };
    if !direct::is_direct(tables, &decision) {
        return None;
    }
    let way = direct::way_back(packet, tables, &segment, &decision)?;
    if let Some(found) = &found {
        let protocol = segment.headers.protocol;
        found.note(Direction::Reverse, protocol, &segment.signal, tables.now());
    }
    Some(direct::send_back(packet, tables, &segment, &decision, &way))
}

/// The flow of a reply, which is not updated.
#[inline(always)]
fn find<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    segment: &Segment<F>,
) -> Option<FlowOf<'a, F>> {
    match lookup::find_reply(tables, segment) {
        Ok(None) => lookup::find_indexed_reply(tables, segment).ok().flatten(),
        found => found.ok().flatten(),
    }
}
