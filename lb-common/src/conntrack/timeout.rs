//! How long entries live, and which of them a new flow replaces.
//!
//! Every lookup ignores an entry whose flow has been idle for longer than its state's limit
//! ([`Timeouts::limits`]). Of the others a new flow first replaces those of reset connections, then
//! the one that has been idle for longest, such as a flood may have left. Of streams of datagrams
//! and established one-way flows only a fraction of the idle time counts: they have carried more
//! packets, but nothing proves their client's address. Established and half-closed connections are
//! never replaced.
//!
//! There are no further classes, on purpose. If one kind of unproven flow were replaced before
//! another, a flood that fills the table with the other kind would evict new connections of the
//! first during their handshake. By idle time, an entry stays for as long as the flood needs to
//! fill the table.

use super::entry::EntryWord;
use crate::branchless::{sign, smaller};
use crate::layout::{FlowState, FlowTag, Settings, Ticks};

pub use crate::layout::Timeouts;

/// Right shift of the idle time of streams of datagrams and of established one-way flows.
const LASTING: i64 = 3;

/// Another CPU's clock may be ahead by a tick. Differences up to this one are taken for that.
const TOLERANCE: u32 = 64;

/// The distance between two classes: more than any idle time.
const CLASS: i64 = 1 << 34;

/// The highest rank, of free and expired entries.
const FREE: i64 = 16 * CLASS;

/// Added to the rank of an expired entry, which then is that of a free one, but for claimed entries.
const EXPIRED: i64 = 20 * CLASS;

/// Eviction rank by state, to which the idle time is added. An entry of rank 0 or less is never
/// replaced. The lowest bits are the right shift of the idle time.
static RANKS: [i64; 32] = {
    use FlowState::*;
    /// Below 0 even with all idle time, and above 0 once expired.
    const PROTECTED: i64 = -2 * CLASS;
    const CLAIMED: i64 = -100 * CLASS;
    let known = [
        (Free, FREE),
        (Reset, 4 * CLASS),
        (OneWayClosed, 4 * CLASS),
        (TimeWait, 3 * CLASS),
        (SynSent, 3 * CLASS),
        (SynReceived, 3 * CLASS),
        (PickedUp, 3 * CLASS),
        (Probation, 3 * CLASS),
        (OneWaySyn, 3 * CLASS),
        (OneWayProbation, 3 * CLASS),
        (OneWayEstablished, (3 * CLASS) | LASTING),
        (Datagram, 3 * CLASS),
        (DatagramReplied, 3 * CLASS),
        (DatagramContinued, 3 * CLASS),
        (DatagramStream, (3 * CLASS) | LASTING),
        (Established, PROTECTED),
        (FinFromClient, PROTECTED),
        (FinFromBackend, PROTECTED),
    ];
    let mut ranks = [CLAIMED; 32];
    let mut index = 0;
    while index < known.len() {
        ranks[known[index].0 as usize] = known[index].1;
        index += 1;
    }
    ranks
};

/// Whether a flow has been idle for longer than its state allows.
#[inline(always)]
pub fn is_expired(tag: &FlowTag, word: EntryWord, settings: &Settings, now: Ticks) -> bool {
    now.since(Ticks(tag.seen.load())) > settings.limits[word.state_number() as usize]
}

/// The eviction rank of an entry; 0 or less: never replaced. Without branches, because the verifier
/// would follow every combination of them over the entries.
#[inline(always)]
pub fn eviction_rank(tag: &FlowTag, word: EntryWord, settings: &Settings, now: Ticks) -> i64 {
    let idle = idle_time(tag, now);
    let expired = sign(time_until_limit(idle, word, settings)) as i64;
    let rank = RANKS[word.state_number() as usize];
    // All free and expired entries are equal, so that flows take the first one, in the first bucket.
    smaller(rank + (idle >> (rank & LASTING)) + expired * EXPIRED, FREE)
}

/// 1 if a flow has been idle for longer than its state allows, else 0.
#[inline(always)]
pub fn has_expired(tag: &FlowTag, word: EntryWord, settings: &Settings, now: Ticks) -> u64 {
    sign(time_until_limit(idle_time(tag, now), word, settings))
}

/// For how long a flow has been idle, plus the tolerance.
#[inline(always)]
fn idle_time(tag: &FlowTag, now: Ticks) -> i64 {
    i64::from(now.0.wrapping_add(TOLERANCE).wrapping_sub(tag.seen.load()))
}

/// The time until an idle flow expires; a negative number if that is over.
#[inline(always)]
fn time_until_limit(idle: i64, word: EntryWord, settings: &Settings) -> u64 {
    let limit = i64::from(settings.limits[word.state_number() as usize]) + i64::from(TOLERANCE);
    limit.wrapping_sub(idle) as u64
}
