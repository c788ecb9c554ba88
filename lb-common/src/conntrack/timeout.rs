//! How long entries live, and which make room for a new flow.
//!
//! An entry whose flow was idle for longer than its state's limit ([`Timeouts::limits`]) is as good
//! as gone, to every lookup. Of the others a new flow replaces first what was reset, then whatever was
//! idle for longest, as a flood may have left it. Streams of datagrams and established one-way
//! flows count with a fraction of their idle time: they take more packets, but nothing proves their
//! client's address either. Established and half-closed connections are never replaced.
//!
//! There are no further classes, on purpose. If one kind of unproven flow gave way to another, a flood
//! that fills the table with the other kind would evict new connections of the first within their
//! handshake. By idle time an entry stays for as long as the flood takes to fill the table.

use super::entry::Word;
use crate::layout::{FlowState, FlowTag, Settings, Ticks};

pub use crate::layout::Timeouts;

/// By how many bits the idle time is shifted of streams of datagrams and of established one-way flows.
const LASTING: i64 = 3;

/// Another processor's clock may be ahead by a tick; by so many it is still taken for that.
const TOLERANCE: u32 = 64;

/// The distance between two classes: more than any idle time.
const CLASS: i64 = 1 << 34;

/// An empty entry.
const FREE: i64 = 16 * CLASS;

/// What an entry gains that is expired: it comes before all but free ones.
const EXPIRED: i64 = 10 * CLASS;

/// Eviction rank by state, to which the idle time is added; 0 or less: never replaced. The lowest bits
/// say by how many bits the idle time is shifted before.
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

/// Whether nothing was seen of a flow for longer than its state allows.
#[inline(always)]
pub fn is_expired(tag: &FlowTag, word: Word, settings: &Settings, now: Ticks) -> bool {
    now.since(Ticks(tag.seen.load())) > settings.limits[word.state_number() as usize]
}

/// How gladly an entry is given to a new flow; if not above 0: not at all. Without branches, of which
/// the verifier would follow every combination over the ways.
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
