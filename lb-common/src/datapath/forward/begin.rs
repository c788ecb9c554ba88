//! Beginning a flow: storing what was drafted.

use super::lookup::{client_hash, spread_hash};
use crate::conntrack::{self, EntryClaim, Hops, fills_its_share, is_crowded, reply_index};
use crate::datapath::carried::{Decision, Draft};
use crate::datapath::function::{Function, function_result};
use crate::datapath::handover::{DraftedDecision, DraftedFlow, NextStage};
use crate::datapath::select::affinity;
use crate::datapath::tables::FamilyTables;
use crate::datapath::verdict::{Verdict, drop_for};
use crate::datapath::wire::parse::PacketFamily;
use crate::family::Family;
use crate::hash::{FlowHash, ReplyHash};
use crate::layout::{Flow, FlowBucket, FlowKind, FlowState, Reason, Ticks};

/// The two buckets of a flow, with their numbers.
pub type Candidates<'a, F> = [(u32, &'a FlowBucket<F>); 2];

/// The last value of [`Draft::crowded`] with which a flow looks for an entry.
pub const MOST_CROWDED: u32 = 2;

function_result! {
    /// The outcome of beginning a drafted flow.
    pub enum Begun {
        /// The flow has an entry, whose location is in the draft, with the decision for the packet.
        Entry,
        /// [`Stage::Snat`](crate::datapath::Stage) comes next: the flow's replies could be mistaken for
        /// those of another, so it needs the reply index; or its client's buckets are full; or it tries
        /// another port.
        Indexed,
        /// There is no entry for the flow. It is forwarded without one.
        Untracked,
        /// There is no entry for the flow, and it needs one.
        Full,
        /// All ports that were tried are in use.
        NoPort,
        /// A table is not as the agent creates it.
        Corrupt,
    }
    otherwise Corrupt
}

/// Stores the drafted flow by one of the functions that begin it; then the packet is sent.
#[inline(always)]
pub fn begin_drafted_flow<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    function: Function,
    flow: DraftedFlow,
) -> Verdict {
    match Begun::from_number(tables.call(function)) {
        Begun::Entry => Verdict::Next(NextStage::send(DraftedDecision::proven())),
        Begun::Indexed => Verdict::Next(NextStage::snat(flow)),
        Begun::Untracked => Verdict::Next(NextStage::untracked(flow)),
        Begun::Full => drop_for(tables, Reason::FlowTableFull),
        Begun::NoPort => drop_for(tables, Reason::NoSnatPort),
        Begun::Corrupt => drop_for(tables, Reason::CorruptTable),
    }
}

/// Begins the drafted flow in the buckets of its client's address and port, and stores its location
/// in the draft. `ALONE`: the lookup for the packet has found no other flow there.
#[inline(always)]
pub fn begin_in_client_buckets<const ALONE: bool, F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
) -> Begun {
    let Some(draft) = tables.draft() else { return Begun::Corrupt };
    let flow = &draft.flow;
    let hash = client_hash(tables, flow.client, flow.client_port, flow.protocol);
    let Ok(buckets) = candidate_buckets(tables, hash) else { return Begun::Corrupt };
    let now = tables.now();
    // Replies to tunnelled packets do not pass this node.
    let replies = !flow.kind.has(FlowKind::TUNNELLED);
    if replies && tables.settings().has_snat_port(flow.snat_port) {
        return Begun::Indexed;
    }
    // Most clients have no other flow.
    if !ALONE {
        // The function does not look in the reply index: the port is not in its range, and the client has
        // no flows in other buckets.
        if replies && (is_crowded(tables, hash) || tables.call(Function::IsTaken) != 0) {
            return Begun::Indexed;
        }
        if fills_its_share(&buckets, hash) {
            draft.crowded = 1;
            return Begun::Indexed;
        }
    }
    let Some(claim) = conntrack::claim_flow_entry(buckets, hash, tables.settings(), now) else {
        // All entries are protected: client and frontend select other buckets.
        draft.crowded = 1;
        return Begun::Indexed;
    };
    claim.write(&draft.flow, draft.track);
    draft.at = claim.at;
    draft.decision = Decision::of_request(&draft.flow);
    publish_flow(tables, draft, claim, now);
    Begun::Entry
}

/// Counts the flow, and makes it visible.
#[inline(always)]
pub fn publish_flow<'a, F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    draft: &Draft<F>,
    claim: EntryClaim<'a, F>,
    now: Ticks,
) -> Hops<'a> {
    account_new_flow(tables, draft);
    claim.publish(draft.state, now)
}

/// Counts a new flow, and stores its affinity.
#[inline(always)]
fn account_new_flow<F: PacketFamily, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) {
    let flow = &draft.flow;
    tables.count_new_flow(flow.service_port, flow.backend_index);
    store_draft_affinity(tables, draft);
}

/// Stores the affinity of the drafted flow, if its Service has session affinity.
#[inline(always)]
pub fn store_draft_affinity<F: PacketFamily, T: FamilyTables<F>>(tables: &T, draft: &Draft<F>) {
    if draft.sticky != 0 {
        let Flow { client, service_port, backend_index, .. } = draft.flow;
        affinity::store_affinity(tables, client, service_port, backend_index, draft.generation);
    }
}

/// The candidate buckets of a hash.
#[inline(always)]
pub fn candidate_buckets<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
) -> Result<Candidates<'_, F>, Reason> {
    let [first, second] = tables.buckets_of(hash);
    let one = tables.flow_bucket(first).ok_or(Reason::CorruptTable)?;
    let other = tables.flow_bucket(second).ok_or(Reason::CorruptTable)?;
    Ok([(first, one), (second, other)])
}

/// The hash that selects the drafted flow's buckets.
#[inline(always)]
pub fn hash_of_draft<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    draft: &Draft<F>,
) -> FlowHash {
    let Flow { client, client_port, frontend, frontend_port, protocol, .. } = draft.flow;
    if draft.crowded == 0 {
        return client_hash(tables, client, client_port, protocol);
    }
    let hash = spread_hash(tables, (client, client_port), (frontend, frontend_port), protocol);
    match hash.further() {
        Some(further) if draft.crowded > 1 => further,
        _ => hash,
    }
}

/// Whether replies to the drafted flow would be mistaken for those of another.
#[inline(always)]
pub fn are_replies_taken<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return true };
    let flow = &draft.flow;
    let hash = client_hash(tables, flow.snat, flow.snat_port, flow.protocol);
    draft.hash = hash;
    for bucket in tables.buckets_of(hash) {
        let Some(draft) = tables.draft() else { return true };
        draft.bucket = bucket;
        if tables.call(Function::IsTakenInBucket) != 0 {
            return true;
        }
    }
    let Some(draft) = tables.draft() else { return true };
    let flow = &draft.flow;
    if !may_be_indexed(tables, hash, flow) {
        return false;
    }
    let Some(at) = reply_index::find_reply_location(tables, replies_of(tables, flow)) else {
        return false;
    };
    let bucket = tables.flow_bucket(at.bucket() & tables.flow_mask());
    bucket.is_some_and(|bucket| conntrack::is_alive(bucket, at, tables.settings(), tables.now()))
}

/// Whether another flow with the same replies could be found only by the reply index. Most clients
/// use ports above the SNAT range, and few have flows in other buckets.
#[inline(always)]
fn may_be_indexed<F: PacketFamily, T: FamilyTables<F>>(
    tables: &T,
    hash: FlowHash,
    flow: &Flow<F>,
) -> bool {
    tables.settings().has_snat_port(flow.snat_port) || is_crowded(tables, hash)
}

/// The function [`Function::IsTakenInBucket`]: whether replies would be mistaken for those of a flow in
/// the bucket. A flow that was reset or has expired is replaced; one that has closed is not, because its
/// backend may still wait for the last packets.
#[inline(always)]
pub fn is_taken_in_bucket<F: PacketFamily, T: FamilyTables<F>>(tables: &T) -> bool {
    let Some(draft) = tables.draft() else { return true };
    let Draft { flow, hash, bucket: index, .. } = draft;
    let Some(bucket) = tables.flow_bucket(*index) else { return true };
    let found = conntrack::find_entry_in_bucket((*index, bucket), *hash, |other, _| {
        has_replies_of(other, flow)
    });
    let Some(found) = found else { return false };
    if found.state() == FlowState::Reset || found.is_expired(tables.settings(), tables.now()) {
        found.release();
        return false;
    }
    true
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
