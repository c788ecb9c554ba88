//! The earlier owners of slots: backends to which a slot of a pool led before its table changed.

/// How many earlier owners of a slot are kept.
pub const HISTORY_DEPTH: usize = 4;

/// A slot of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolSlot {
    pub pool: u32,
    /// From 0 to the table's size less one.
    pub slot: u32,
}

/// The backends that owned a slot before the current one, the last one first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EarlierOwners {
    /// Indexes of backends; [`NO_BACKEND`](super::NO_BACKEND) after the last one.
    pub backends: [u32; HISTORY_DEPTH],
    /// Until when each owned the slot, in seconds since the machine started; with [`Self::SEVERAL`] in
    /// addition.
    pub until: [u32; HISTORY_DEPTH],
}

impl EarlierOwners {
    /// The backend stands for several owners on its node.
    pub const SEVERAL: u32 = 1 << 31;

    /// A time or an age, and whether the backend stands for several, in one word.
    pub const fn with_mark(seconds: u32, several: bool) -> u32 {
        if several { seconds | Self::SEVERAL } else { seconds }
    }

    /// The two of such a word.
    pub const fn without_mark(word: u32) -> (u32, bool) {
        (word & !Self::SEVERAL, word & Self::SEVERAL != 0)
    }
}

const _: () = assert!(size_of::<PoolSlot>() == 8);
const _: () = assert!(size_of::<EarlierOwners>() == 32);
