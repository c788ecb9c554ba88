//! The end under which a backend knows a client, where the client's own would not do: answers must
//! come back through this node, or could not be told from another flow's.

use super::parse::Network;
use super::{Draft, FamilyTables, Stage, Verdict, follow, ingress, open, tcp};
use crate::branchless::choose;
use crate::flow_table::{self, Claim};
use crate::hash::{self, AnswerHash, FlowHash};
use crate::layout::{Flow, FlowBucket, FlowKind, Reason, Ticks};
use crate::return_table;

/// Ports that a round of the stage looks at, of which it tries one.
const LOOKED_AT: u32 = 8;

/// Rounds: the kernel follows no more than 33 tail calls.
const ROUNDS: u32 = 30;

/// Whether the answers to a flow would be those of another. One that has ended gives way.
#[inline(always)]
fn is_taken<F: Network, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>, now: Ticks) -> bool {
    let hash = follow::client_hash(tables, flow.alias, flow.alias_port, flow.protocol);
    let [first, second] = hash.buckets(tables.flow_mask());
    let (Some(one), Some(other)) = (tables.flow_bucket(first), tables.flow_bucket(second)) else {
        return true;
    };
    is_taken_in(tables, [one, other], hash, flow, now)
}

/// The same, where the buckets of the alias's hash have been looked up.
#[inline(always)]
pub fn is_taken_in<F: Network, T: FamilyTables<F>>(
    tables: &T,
    buckets: [&FlowBucket<F>; 2],
    hash: FlowHash,
    flow: &Flow<F>,
    now: Ticks,
) -> bool {
    for bucket in buckets {
        let found = flow_table::find(bucket, hash, |other, _| has_answers(other, flow));
        let Some(found) = found else { continue };
        if tcp::is_closing(found.state()) || found.expired(now) {
            found.release();
        } else {
            return true;
        }
    }
    // Most clients take their own ports from above those of aliases.
    if !tables.settings().has_alias_port(flow.alias_port) {
        return false;
    }
    let Some(place) = return_table::find(tables, answers(tables, flow)) else { return false };
    let bucket = tables.flow_bucket(place.bucket & tables.flow_mask());
    bucket.is_some_and(|bucket| flow_table::is_alive(bucket, place, now))
}

#[inline(always)]
fn has_answers<F: Network>(other: &Flow<F>, flow: &Flow<F>) -> Option<()> {
    let same = other.alias == flow.alias
        && other.alias_port == flow.alias_port
        && other.backend == flow.backend
        && other.backend_port == flow.backend_port
        && other.protocol == flow.protocol;
    same.then_some(())
}

#[inline(always)]
fn answers<F: Network, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>) -> AnswerHash {
    AnswerHash::of::<F>(
        &tables.settings().secret,
        (flow.backend, flow.backend_port),
        (flow.alias, flow.alias_port),
        flow.protocol,
    )
}

/// Begins the flow that was drafted with an alias's port that no other flow to the backend has.
/// [`Stage::Open`] comes next if it did, [`Stage::Alias`] if more ports may be tried.
#[inline(never)]
pub fn begin<F: Network, T: FamilyTables<F>>(tables: &T) -> Verdict {
    let Some(draft) = tables.draft() else {
        return ingress::drop_for(tables, Reason::CorruptTable);
    };
    let now = tables.now();
    draft.flow.kind = draft.flow.kind.and(FlowKind::ALIASED);
    let claim = match claim(tables, draft, now) {
        Ok(claim) => claim,
        Err(reason) => return ingress::drop_for(tables, reason),
    };
    let round = tables.attempt();
    draft.flow.alias_port = port(tables, &draft.flow, round);
    if try_port(tables, &claim, &draft.flow, now) {
        open::account(tables, draft);
        claim.publish(now);
        return Verdict::Next(Stage::Open);
    }
    claim.abandon();
    tables.set_attempt(round + 1);
    if round + 1 < ROUNDS {
        return Verdict::Next(Stage::Alias);
    }
    ingress::drop_for(tables, Reason::NoAlias)
}

/// The port to try in a round: one that no flow to the backend seems to have. If all seem taken,
/// one of them after the other, for the flow may be gone.
#[inline(never)]
fn port<F: Network, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>, round: u32) -> u16 {
    let ports = Ports::of(tables, flow);
    let first = round * LOOKED_AT;
    let mut chosen = u64::from(ports.port(first + round % LOOKED_AT));
    // Most find theirs at once, and are spared the others' cache lines.
    if round > 0 {
        for number in 0..LOOKED_AT {
            let port = ports.port(first + number);
            let hash = AnswerHash::of::<F>(
                &tables.settings().secret,
                (flow.backend, flow.backend_port),
                (flow.alias, port),
                flow.protocol,
            );
            let seems_free = return_table::seems_free(tables, hash);
            chosen = choose(seems_free, u64::from(port), chosen);
        }
    }
    chosen as u16
}

/// Apart, for what it needs of the stack.
#[inline(never)]
fn claim<'a, F: Network, T: FamilyTables<F>>(
    tables: &'a T,
    draft: &Draft<F>,
    now: Ticks,
) -> Result<Claim<'a, F>, Reason> {
    open::claim(tables, draft, now)
}

/// Writes the flow to its place if its answers would be its own.
#[inline(never)]
fn try_port<F: Network, T: FamilyTables<F>>(
    tables: &T,
    claim: &Claim<'_, F>,
    flow: &Flow<F>,
    now: Ticks,
) -> bool {
    // The client may use the port by itself.
    if flow.alias == flow.client && is_taken(tables, flow, now) {
        return false;
    }
    claim.write(flow);
    return_table::insert(tables, answers(tables, flow), claim.at, now)
}

/// The order in which a flow tries ports. Their number is a prime, so that every stride meets all.
struct Ports {
    first: u32,
    count: u32,
    start: u32,
    stride: u32,
}

impl Ports {
    #[inline(always)]
    fn of<F: Network, T: FamilyTables<F>>(tables: &T, flow: &Flow<F>) -> Self {
        let settings = tables.settings();
        let count = u32::from(settings.alias_port_count);
        // By the flow, not by chance: the same on the host and in the kernel.
        let start = hash::spread::<F>(
            flow.client,
            flow.client_port,
            flow.frontend,
            flow.frontend_port,
            flow.protocol,
        );
        let stride = hash::mix(u64::from(start)) as u32;
        Self {
            first: u32::from(settings.alias_port_first),
            count,
            start: hash::scale(start, count),
            stride: 1 + hash::scale(stride, count.saturating_sub(1)),
        }
    }

    #[inline(always)]
    fn port(&self, number: u32) -> u16 {
        let offset = self.start.wrapping_add(number.wrapping_mul(self.stride));
        // All tries with strides of 16 bits stay below 2^32.
        (self.first + offset % self.count.max(1)) as u16
    }
}
