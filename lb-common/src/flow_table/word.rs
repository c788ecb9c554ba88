//! A tag's word, and what its state is worth to whoever needs a place.

use super::Beginning;
use crate::hash::FlowHash;
use crate::layout::{FlowState, FlowTag, Ticks, WAYS};

/// A tag's word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u32);

impl Word {
    /// Set for flows of protocols without connections, whose idle times are shorter.
    pub const DATAGRAM: u32 = 1 << 3;
    /// Set for flows whose first packet was one of a connection's middle.
    const MIDWAY: u32 = 1 << 7;
    const STATE: u32 = 0x07;

    /// The tag of a place's next owner.
    #[inline(always)]
    pub fn claim(self, hash: FlowHash, way: usize, beginning: Beginning) -> Self {
        let generation = (self.0 + (1 << 8)) & 0xff00;
        let kind = match beginning {
            Beginning::Dial => 0,
            Beginning::Midway => Self::MIDWAY,
            Beginning::Datagram => Self::DATAGRAM,
        };
        let way = (way as u32) << 4;
        Self(hash.fingerprint() << 16 | generation | kind | way | FlowState::Claimed as u32)
    }

    /// Which place of the bucket this is the tag of. It stands in the tag, rather than in the
    /// loop that finds it, so that the verifier sees one unknown number below 8 and follows
    /// what comes of a found flow once instead of once for each place.
    #[inline(always)]
    pub fn way(self) -> usize {
        (self.0 >> 4) as usize & (WAYS - 1)
    }

    #[inline(always)]
    pub fn fingerprint(self) -> u32 {
        self.0 >> 16
    }

    /// Whether it may be the flow's that has this hash.
    #[inline(always)]
    pub fn may_be(self, hash: FlowHash) -> bool {
        self.fingerprint() == hash.fingerprint() && self.holds_a_flow()
    }

    #[inline(always)]
    pub fn generation(self) -> u32 {
        (self.0 >> 8) & 0xff
    }

    #[inline(always)]
    fn class(self) -> &'static Class {
        &CLASSES[(self.0 & (Self::DATAGRAM | Self::STATE)) as usize]
    }

    #[inline(always)]
    pub fn state(self) -> FlowState {
        FlowState::from_low_bits(self.0)
    }

    #[inline(always)]
    pub fn began_midway(self) -> bool {
        self.0 & Self::MIDWAY != 0
    }

    #[inline(always)]
    pub fn holds_a_flow(self) -> bool {
        self.0 & Self::STATE >= FlowState::Nascent as u32
    }

    #[inline(always)]
    pub fn is_free(self) -> bool {
        self.0 & Self::STATE == FlowState::Free as u32
    }

    #[inline(always)]
    pub fn with_state(self, state: FlowState) -> Self {
        Self(self.0 & !Self::STATE | state as u32)
    }

    /// Whether both name the same owner, whatever its state.
    #[inline(always)]
    pub fn same_owner(self, other: Self) -> bool {
        self.0 >> 8 == other.0 >> 8 && other.holds_a_flow()
    }
}

impl FlowState {
    #[inline(always)]
    fn from_low_bits(bits: u32) -> Self {
        // SAFETY: the enum has a variant for each value of three bits.
        unsafe { core::mem::transmute::<u8, Self>(bits as u8 & 7) }
    }
}

/// How a place is treated in one state; times are in ticks.
struct Class {
    /// How long the flow may be idle before it is as good as gone; below 2^31.
    idle_limit: u32,
    /// What a place has on others by its state. With the time that it has been idle it is how gladly
    /// the place is given to a new flow; if that is not above 0: not at all.
    bonus: i64,
}

/// By state, and by state of datagram flows.
static CLASSES: [Class; 16] = {
    const FREE: Class = Class { idle_limit: i32::MAX as u32, bonus: 1 << 33 };
    const CLAIMED: Class = Class { idle_limit: i32::MAX as u32, bonus: -(1 << 33) };
    /// What is closed goes before all that may live, unless that is over for long.
    const CLOSED: Class =
        Class { idle_limit: Ticks::in_seconds(30), bonus: Ticks::in_seconds(1000) as i64 };
    /// To be had at any time, the one that has waited longest first.
    const fn nascent(seconds: u32) -> Class {
        Class { idle_limit: Ticks::in_seconds(seconds), bonus: 0 }
    }
    /// To be had when its time is over.
    const fn kept(seconds: u32) -> Class {
        let idle_limit = Ticks::in_seconds(seconds);
        Class { idle_limit, bonus: -((idle_limit + TOLERANCE) as i64) }
    }
    [
        FREE,
        CLAIMED,
        nascent(60),  // Nascent
        nascent(60),  // Answered
        kept(86_400), // Established
        kept(3_600),  // ClosedForward
        kept(3_600),  // ClosedReverse
        CLOSED,
        // Datagrams:
        FREE,
        CLAIMED,
        nascent(30), // Nascent
        nascent(30), // Answered
        kept(180),   // Established
        CLAIMED,
        CLAIMED,
        CLAIMED,
    ]
};

/// Another processor's clock may be ahead by a tick; by so many it is still taken for that.
const TOLERANCE: u32 = 64;

#[inline(always)]
pub fn expired(tag: &FlowTag, word: Word, now: Ticks) -> bool {
    now.since(Ticks(tag.seen.load())) > word.class().idle_limit
}

/// How gladly a place is given to a new flow; if not above 0: not at all. Without branches, of which
/// the verifier would follow every combination over the ways.
#[inline(always)]
pub fn rank(tag: &FlowTag, word: Word, now: Ticks) -> i64 {
    let idle = now.0.wrapping_add(TOLERANCE).wrapping_sub(tag.seen.load());
    word.class().bonus + i64::from(idle)
}
