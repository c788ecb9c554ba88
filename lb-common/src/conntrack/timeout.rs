//! How long entries live, and which ones a new flow replaces.
//!
//! Every lookup ignores an entry whose flow has been idle for longer than its state's limit
//! ([`Timeouts::limits`]). Of the others a new flow first replaces reset connections, then the
//! entry that has been idle for longest. Only a fraction of the idle time counts for streams of
//! datagrams and established one-way flows: they take more packets, although nothing proves their
//! client's address either. Established and half-closed connections are never replaced.
//!
//! There are deliberately no further classes. If one kind of unproven flow were replaced before
//! another, a flood of the other kind would evict new connections of the first during their
//! handshake. With idle time alone an entry stays for as long as the flood needs to fill the table.

use super::entry::Word;
use crate::layout::{FlowState, FlowTag, Settings, Ticks};

pub use crate::layout::Timeouts;

/// Shift of the idle time of datagram streams and established one-way flows, in bits.
const LASTING: i64 = 3;

/// Another CPU's clock may be ahead by a tick; a difference of up to so many ticks counts as that.
const TOLERANCE: u32 = 64;

/// The distance between two classes: more than any idle time.
const CLASS: i64 = 1 << 34;

/// An empty entry.
const FREE: i64 = 16 * CLASS;

/// Added to the rank of an expired entry, so that only free ones rank higher.
const EXPIRED: i64 = 10 * CLASS;

/// Eviction rank by state, to which the idle time is added; 0 or less: never replaced. The lowest
/// bits are the shift of the idle time.
static RANKS: [i64; 32] = {
    use FlowState::*;
    /// Even with all idle time below 0, and above 0 once expired.
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

/// Whether a flow has been idle for longer than its timeout.
#[inline(always)]
pub fn is_expired(tag: &FlowTag, word: Word, settings: &Settings, now: Ticks) -> bool {
    now.since(Ticks(tag.seen.load())) > settings.limits[word.state_number() as usize]
}

/// Eviction rank of an entry; 0 or less: never replaced. Without branches, whose combinations over
/// all entries the verifier would follow.
#[inline(always)]
pub fn rank(tag: &FlowTag, word: Word, settings: &Settings, now: Ticks) -> i64 {
    use crate::branchless::opaque;

    let state = word.state_number() as usize;
    let idle = i64::from(now.0.wrapping_add(TOLERANCE).wrapping_sub(tag.seen.load()));
    let limit = i64::from(settings.limits[state]) + i64::from(TOLERANCE);
    // All bits of it are the sign: set if the limit is less than the idle time.
    let expired = opaque(limit.wrapping_sub(idle) as u64 as i64 as u64) as i64 >> 63;
    let rank = RANKS[state];
    rank + (idle >> (rank & LASTING)) + (expired & EXPIRED)
}
