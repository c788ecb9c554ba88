//! Beginning a flow: storing what was drafted.

use super::lookup::{client_hash, spread_hash};
use crate::conntrack::{self, Claim, Hops, fills_its_share, is_crowded, reply_index};
use crate::datapath::carried::Draft;
use crate::datapath::select::affinity;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::family::Family;
use crate::hash::{FlowHash, ReplyHash};
use crate::layout::{Flow, FlowBucket, FlowKind, FlowState, Reason, Ticks};

/// The result of [`begin`].
pub enum Begun<'a> {
    Entry(Hops<'a>),
    /// Its replies could be mistaken for those of another flow, so it needs the reply index; or its
    /// client has very many flows.
    Indexed,
    /// There is no entry for it.
    Full,
}

/// The two buckets of a flow, with their numbers.
pub type Candidates<'a, F> = [(u32, &'a FlowBucket<F>); 2];

/// Begins the drafted flow in the buckets of its client's address and port.
#[inline(always)]
pub fn begin<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &mut Draft<F>,
) -> Result<Begun<'a>, Reason> {
    let flow = &draft.flow;
    let hash = client_hash(tables, flow.client, flow.client_port, flow.protocol);
    let buckets = candidates(tables, hash)?;
    let now = tables.now();
    // Replies to tunnelled packets do not pass this node.
    let replies = !flow.kind.has(FlowKind::TUNNELLED);
    if replies && tables.settings().has_snat_port(flow.snat_port) {
        return Ok(Begun::Indexed);
    }
    // The lookup for the packet has read the same buckets: most clients have no other flow.
    if !tables.is_alone() {
        if replies && (is_crowded(tables, hash) || is_taken_in(tables, buckets, hash, flow, now)) {
            return Ok(Begun::Indexed);
        }
        if fills_its_share(&buckets, hash) {
            draft.crowded = 1;
            return Ok(Begun::Indexed);
        }
    }
    let Some(claim) = conntrack::claim(buckets, hash, tables.settings(), now) else {
        return Ok(Begun::Full);
    };
    claim.write(&draft.flow, draft.track);
    Ok(Begun::Entry(publish(tables, draft, claim, now)))
}

/// Counts the flow, and makes it visible.
#[inline(always)]
pub fn publish<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    draft: &Draft<F>,
    claim: Claim<'a, F>,
    now: Ticks,
) -> Hops<'a> {
    account(tables, draft);
    claim.publish(draft.state, now)
}

/// Counts a new flow, and stores its affinity.
#[inline(always)]
fn account<F: PacketFamily, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) {
    let flow = &draft.flow;
    tables.count_new_flow(flow.service_port, flow.backend_index);
    if draft.sticky != 0 {
        let backend = flow.backend_index;
        affinity::remember(tables, flow.client, flow.service_port, backend, draft.generation);
    }
}

/// The candidate buckets of a hash.
#[inline(always)]
pub fn candidates<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
) -> Result<Candidates<'_, F>, Reason> {
    let [first, second] = hash.buckets(tables.flow_mask());
    let one = tables.flow_bucket(first).ok_or(Reason::CorruptTable)?;
    let other = tables.flow_bucket(second).ok_or(Reason::CorruptTable)?;
    Ok([(first, one), (second, other)])
}

/// The hash that selects the drafted flow's buckets.
#[inline(always)]
pub fn hash_of<F: PacketFamily, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) -> FlowHash {
    let Flow { client, client_port, frontend, frontend_port, protocol, .. } = draft.flow;
    if draft.crowded != 0 {
        spread_hash(tables, (client, client_port), (frontend, frontend_port), protocol)
    } else {
        client_hash(tables, client, client_port, protocol)
    }
}

/// Whether replies to the flow would be mistaken for those of another.
#[inline(always)]
pub fn is_taken<F: PacketFamily, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>) -> bool {
    let hash = client_hash(tables, flow.snat, flow.snat_port, flow.protocol);
    let Ok(buckets) = candidates(tables, hash) else { return true };
    if is_taken_in(tables, buckets, hash, flow, tables.now()) {
        return true;
    }
    if !may_be_indexed(tables, hash, flow) {
        return false;
    }
    let Some(at) = reply_index::find(tables, replies_of(tables, flow)) else { return false };
    let bucket = tables.flow_bucket(at.bucket() & tables.flow_mask());
    bucket.is_some_and(|bucket| conntrack::is_alive(bucket, at, tables.settings(), tables.now()))
}

/// Whether another flow with the same replies could be found only by the reply index. Most clients
/// use ports above the SNAT range, and few have very many flows.
#[inline(always)]
fn may_be_indexed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
    flow: &Flow<F>,
) -> bool {
    tables.settings().has_snat_port(flow.snat_port) || is_crowded(tables, hash)
}

/// Whether replies would be mistaken for those of a flow in the same buckets. A flow that was reset
/// or has expired is replaced; one that has closed is not, because its backend may still wait for
/// the last packets.
#[inline(always)]
fn is_taken_in<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    buckets: Candidates<'_, F>,
    hash: FlowHash,
    flow: &Flow<F>,
    now: Ticks,
) -> bool {
    let settings = tables.settings();
    for bucket in buckets {
        let found = conntrack::find(bucket, hash, |other, _| has_replies_of(other, flow));
        let Some(found) = found else { continue };
        if found.state() == FlowState::Reset || found.is_expired(settings, now) {
            found.release();
        } else {
            return true;
        }
    }
    false
}

#[inline(always)]
fn has_replies_of<F: Family>(other: &Flow<F>, flow: &Flow<F>) -> Option<()> {
    let same = other.snat == flow.snat
        && other.snat_port == flow.snat_port
        && other.backend == flow.backend
        && other.backend_port == flow.backend_port
        && other.protocol == flow.protocol;
    same.then_some(())
}

/// The key of a flow in the reply index.
#[inline(always)]
pub fn replies_of<F: PacketFamily, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>) -> ReplyHash {
    ReplyHash::of::<F>(
        &tables.settings().secret,
        (flow.backend, flow.backend_port),
        (flow.snat, flow.snat_port),
        flow.protocol,
    )
}
