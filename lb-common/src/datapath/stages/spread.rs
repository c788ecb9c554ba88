//! A packet whose flow may not be in its client's buckets: client and frontend select others.

use super::delivered;
use crate::datapath::forward::carry::{self, Carried};
use crate::datapath::forward::lookup;
use crate::datapath::forward::send;
use crate::datapath::forward::stored;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Stage, Verdict};
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::{self, PacketFamily, Parsed};

#[inline(always)]
pub fn process_spread_packet<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Verdict {
    let found = look_up::<F, P, T>(packet, tables, network);
    tables.set_alone(false);
    let otherwise = if tables.is_delivered() { Stage::Accept } else { Stage::Open };
    send::found_or::<F, P, T>(packet, tables, network, found, otherwise)
}

#[inline(never)]
fn look_up<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    packet: &mut P,
    tables: &T,
    network: usize,
) -> Carried {
    // No effect. To a function that only reads, the compiler passes the packet's bounds instead of
    // the packet, and the verifier treats them as plain numbers.
    packet.leave_by(0);
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
    if tables.is_delivered() {
        delivered::unless_forwarded::<F, T>(tables, carried)
    } else {
        carried
    }
}
