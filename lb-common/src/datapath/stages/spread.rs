//! A packet whose flow may not be in its client's buckets: client and frontend select others.

use super::{delivered, node};
use crate::datapath::arrival::Arrival;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::lookup;
use crate::datapath::forward::send;
use crate::datapath::forward::stored;
use crate::datapath::handover::NextStage;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::Verdict;
use crate::datapath::wire::packet::{Packet, Role};
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};

#[inline(always)]
pub fn process_spread_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Verdict {
    let found = look_up::<F, P, T>(packet, tables, network, arrival);
    if let Carried::Found(decision) = found
        && packet.role() == Role::Node
    {
        return Verdict::Next(NextStage::send(decision));
    }
    send::found_or::<F, P, T>(packet, tables, network, found, || {
        if arrival.is_by_tunnel() {
            NextStage::accept(tables, arrival)
        } else {
            NextStage::open(tables, false)
        }
    })
}

#[inline(never)]
fn look_up<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
    arrival: Arrival,
) -> Carried {
    packet.keep_whole();
    let Parsed::Segment::<F>(segment) = parse::parse_whole_or_first(packet, network) else {
        return Carried::Nothing;
    };
    stored::store_segment(tables, &segment);
    let hash = lookup::spread_hash_of(tables, &segment);
    let mut carried = carry::follow_at_once(tables, &segment, hash, packet.resolves());
    // Only if established connections have all entries of the first two buckets.
    if carried == Carried::Nothing
        && let Some(further) = hash.further()
    {
        carried = carry::follow_hashed::<F, T>(tables, further, packet.resolves());
    }
    carried = node::unless_of_another::<F, P, T>(packet, tables, carried);
    if arrival.is_by_tunnel() {
        delivered::unless_forwarded::<F, T>(tables, carried, arrival)
    } else {
        carried
    }
}
