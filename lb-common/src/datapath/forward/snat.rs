//! Flows that need the reply index: flows with SNAT, flows that are not in their client's buckets, and
//! flows whose client's port may be another flow's SNAT port.
//!
//! An SNAT port is chosen as RFC 6056 suggests: from an unpredictable start, with a stride that
//! visits every port of the range, at first an unpredictable one. Ports that this node may use itself are skipped, and so are
//! ports of flows to the same backend that are in the table, and live or have closed within the last
//! minute. Only if all examined ports are in use does a flow lose its port, by eviction rank.

use super::begin::{
    Begun, MOST_CROWDED, candidate_buckets, hash_of_draft, publish_flow, replies_of,
};
use super::lookup::client_hash;
use crate::conntrack::{self, EntryClaim, fills_its_share, reply_index, set_crowded};
use crate::datapath::carried::{Decision, Draft, SnatPortOrder};
use crate::datapath::function::Function;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::MOST_STAGES;
use crate::datapath::wire::parse::PacketFamily;
use crate::hash::{self, ReplyHash};
use crate::layout::{Direction, Flow, FlowKind, Reason};

/// Ports that a round examines.
const LOOKED_AT: u32 = 8;

/// Rounds whose stride is unpredictable. Such a stride may be so small, or so near to a fraction of the range,
/// that it stays among ports that are reserved, and a repeated SYN would examine the same ones. Later rounds
/// spread over the whole range.
const UNPREDICTABLE_ROUNDS: u32 = 3;

/// From this round on the range counts as exhausted, and a port is taken over from a flow that may
/// be evicted. Otherwise a flood of few packets could use up the ports of a backend.
const LAST_RESORT: u32 = 2;

/// How many rounds of ports the stage may examine before it begins anew.
const AT_ONCE: u32 = 3;

/// The stages that may come before this one: of a packet from a tunnel whose client has flows in other
/// buckets, and whose connection this node does not know.
const BEFORE: u32 = 6;

/// The stages that may come after this one: the packet is sent, and tunnelled or rejected.
const AFTER: u32 = 2;

/// The limit of rounds. Each run of this stage takes at least one, except those after which a flow of full
/// buckets looks in others.
const ROUNDS: u32 = MOST_STAGES - BEFORE - MOST_CROWDED - AFTER;

/// Begins the drafted flow, and stores its location in the draft. [`Begun::Indexed`] if more ports
/// may be tried.
#[inline(always)]
pub fn begin_indexed<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> Begun {
    let Some(draft) = tables.draft() else { return Begun::Corrupt };
    let mut claimed = None;
    let outcome = claim_entry(tables, draft, &mut claimed);
    // The client's own port is used if no other flow has the same replies.
    let has_snat = draft.flow.kind.has(FlowKind::SNAT);
    let keeps_port = draft.round == 0 && !has_snat;
    let claim = match (outcome, claimed) {
        (Ok(()), Some(claim)) => claim,
        // All entries are protected: client and frontend select two more buckets, at most twice.
        (Err(Reason::FlowTableFull), _) if draft.crowded < MOST_CROWDED => {
            draft.crowded += 1;
            return Begun::Indexed;
        }
        (Err(Reason::FlowTableFull), _) if has_snat || is_reply_hash_taken::<F, T>(tables) => {
            return Begun::Full;
        }
        // It uses its client's own port.
        (Err(Reason::FlowTableFull), _) => return Begun::Untracked,
        _ => return Begun::Corrupt,
    };
    if (keeps_port || choose_free_port::<F, T>(tables))
        && is_available::<F, T>(tables)
        && store_indexed_flow(tables, &claim)
        && let Some(draft) = tables.draft()
    {
        draft.decision = Decision::of_request(&draft.flow);
        let hops = publish_flow(tables, draft, claim, tables.now());
        // The next hop is known if a route lookup determined the SNAT address.
        if draft.hop != 0 {
            hops.set(Direction::Forward, draft.epoch, draft.hop);
        }
        return Begun::Entry;
    }
    claim.abandon();
    let Some(draft) = tables.draft() else { return Begun::Corrupt };
    draft.round += 1;
    if draft.round < ROUNDS { Begun::Indexed } else { Begun::NoPort }
}

/// Whether replies to the drafted flow would be mistaken for those of another. Replies to tunnelled
/// packets do not pass this node.
#[inline(always)]
fn is_reply_hash_taken<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let tunnelled = tables.draft().is_some_and(|draft| draft.flow.kind.has(FlowKind::TUNNELLED));
    !tunnelled && tables.call(Function::IsTaken) != 0
}

/// Chooses the SNAT port to try. False if all ports of the rounds are in use, and none can be taken over.
#[inline(always)]
fn choose_free_port<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    draft.flow.kind = draft.flow.kind.and(FlowKind::SNAT);
    for _ in 1..AT_ONCE {
        if tables.call(Function::ChoosePort) != 0 {
            return true;
        }
        let Some(draft) = tables.draft() else { return false };
        draft.round += 1;
    }
    tables.call(Function::ChoosePort) != 0
}

/// Chooses one of a round's ports: one that no live flow to the backend uses. As a last resort it takes over the port
/// of the flow with the highest eviction rank. 0 if it has not chosen any, else 1.
#[inline(always)]
pub fn choose_port<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> u32 {
    let Some(draft) = tables.draft() else { return 0 };
    draft.ports = SnatPortOrder::of(tables, draft);
    draft.rank = 0;
    for number in 0..LOOKED_AT {
        let Some(draft) = tables.draft() else { return 0 };
        draft.port = draft.round * LOOKED_AT + number;
        if tables.call(Function::TryPort) != 0 {
            return 1;
        }
    }
    let Some(draft) = tables.draft() else { return 0 };
    let (settings, now) = (tables.settings(), tables.now());
    if draft.round >= LAST_RESORT
        && draft.rank > 0
        && let Some(bucket) = tables.flow_bucket(draft.at.bucket() & tables.flow_mask())
    {
        return conntrack::evict_at(bucket, draft.at, settings, now).into();
    }
    0
}

/// The function [`Function::TryPort`]: 1 if no live flow to the backend uses the port. Otherwise the draft
/// keeps that of the flow with the highest eviction rank.
#[inline(always)]
pub fn try_port<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> u32 {
    let Some(draft) = tables.draft() else { return 0 };
    let (settings, now) = (tables.settings(), tables.now());
    let port = draft.ports.port(draft.port);
    if tables.is_port_reserved(port) {
        return 0;
    }
    let flow = &draft.flow;
    let hash = ReplyHash::of::<F>(
        &settings.secret,
        (flow.backend, flow.backend_port),
        (flow.snat, port),
        flow.protocol,
    );
    let Some(at) = reply_index::find_in_both(tables, hash) else {
        draft.flow.snat_port = port;
        return 1;
    };
    let Some(bucket) = tables.flow_bucket(at.bucket() & tables.flow_mask()) else { return 0 };
    if conntrack::is_gone(bucket, at, settings, now) != 0 {
        draft.flow.snat_port = port;
        return 1;
    }
    let rank = conntrack::rank_at(bucket, at, settings, now);
    if rank > draft.rank {
        draft.rank = rank;
        draft.flow.snat_port = port;
        draft.at = at;
    }
    0
}

/// A function of its own, for its stack frame. The claim is passed by reference: BPF functions
/// return only numbers.
#[inline(never)]
fn claim_entry<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &mut Draft<F>,
    claimed: &mut Option<EntryClaim<'a, F>>,
) -> Result<(), Reason> {
    let mut hash = hash_of_draft(tables, draft);
    let mut buckets = candidate_buckets(tables, hash)?;
    if draft.crowded == 0 && !draft.alone.is_alone() && fills_its_share(&buckets, hash) {
        draft.crowded = 1;
        hash = hash_of_draft(tables, draft);
        buckets = candidate_buckets(tables, hash)?;
    }
    *claimed = conntrack::claim_flow_entry(buckets, hash, tables.settings(), tables.now());
    if claimed.is_some() { Ok(()) } else { Err(Reason::FlowTableFull) }
}

/// Whether the drafted flow may use its port: no other flow has the same replies.
#[inline(always)]
fn is_available<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let flow = &draft.flow;
    // The client may use the port directly.
    flow.snat != flow.client || !is_reply_hash_taken::<F, T>(tables)
}

/// Writes the flow into its entry, and that into the reply index if it needs to be there.
#[inline(never)]
fn store_indexed_flow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    claim: &EntryClaim<'_, F>,
) -> bool {
    let Some(draft) = tables.draft() else { return false };
    let flow = &mut draft.flow;
    if draft.crowded != 0 {
        flow.kind = flow.kind.and(FlowKind::SPREAD);
        let client = client_hash(tables, flow.client, flow.client_port, flow.protocol);
        if !set_crowded(tables, client) {
            return false;
        }
    }
    // Without an SNAT port, and in its client's buckets, it is found by its replies anyway. Replies to
    // tunnelled packets do not pass this node.
    let is_elsewhere = draft.crowded != 0 && !flow.kind.has(FlowKind::TUNNELLED);
    let is_indexed = is_elsewhere || flow.kind.has(FlowKind::SNAT);
    draft.at = claim.at;
    // Before the record is written, for which an exchange waits. Until the flow is published, its entry in
    // the index leads to none.
    if is_indexed && tables.call(Function::Index) == 0 {
        return false;
    }
    let Some(draft) = tables.draft() else { return false };
    claim.write(&draft.flow, draft.track);
    true
}

/// Stores the drafted flow's location in the reply index.
#[inline(always)]
pub fn store_reply_location<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return false };
    reply_index::insert_reply_location(
        tables,
        replies_of(tables, &draft.flow),
        draft.at,
        tables.now(),
    )
}

impl SnatPortOrder {
    #[inline(always)]
    fn of<F: PacketFamily, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) -> Self {
        let settings = tables.settings();
        let count = u32::from(settings.snat_port_count);
        let start = first_port_number(tables, &draft.flow, draft.sequence);
        Self::new(u32::from(settings.snat_port_first), count, start, draft.round)
    }

    /// The ports that this round examines of a range with a prime number of ports.
    #[inline(always)]
    fn new(first: u32, count: u32, start: u32, round: u32) -> Self {
        let unpredictable =
            1 + hash::scale(hash::mix(u64::from(start)) as u32, count.saturating_sub(1));
        // By the golden ratio, any number of steps is spread as evenly as can be.
        let even = ((count * 40_503) >> 16).max(1);
        let stride = if round < UNPREDICTABLE_ROUNDS { unpredictable } else { even };
        Self { first, count, start: hash::scale(start, count), stride }
    }

    #[inline(always)]
    fn port(&self, number: u32) -> u16 {
        let offset = self.start.wrapping_add(number.wrapping_mul(self.stride));
        // All tries with strides of 16 bits stay below 2^32.
        (self.first + offset % self.count.max(1)) as u16
    }
}

/// The first SNAT port that a flow tries: derived from a secret and from what differs between
/// connections.
#[inline(always)]
fn first_port_number<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    flow: &Flow<F>,
    sequence: u32,
) -> u32 {
    let ends = ReplyHash::of::<F>(
        &tables.settings().secret,
        (flow.client, flow.client_port),
        (flow.frontend, flow.frontend_port),
        flow.protocol,
    );
    hash::mix(u64::from(ends.fingerprint()) << 32 | u64::from(sequence)) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    /// The ports that a flow examines before it is refused.
    fn examined(count: u32, start: u32) -> Vec<u16> {
        let ports = (0..ROUNDS * LOOKED_AT)
            .map(|number| SnatPortOrder::new(0, count, start, number / LOOKED_AT).port(number));
        let mut ports: Vec<_> = ports.collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    #[test]
    fn free_ports_that_are_neighbours_are_found_from_every_start() {
        for count in [2, 151, 257, 4_513, 31_741, 65_521] {
            let neighbours = 1 + count / 90;
            for number in 0..2_000_u64 {
                let ports = examined(count, hash::mix(number) as u32);
                let around = u32::from(ports[0]) + count - u32::from(ports[ports.len() - 1]);
                let between = ports.windows(2).map(|pair| u32::from(pair[1] - pair[0]));
                let widest = between.chain([around]).max().unwrap_or(count);
                assert!(
                    widest <= neighbours,
                    "{count} ports: {widest} of them are not examined, start {number}"
                );
            }
        }
    }
}
