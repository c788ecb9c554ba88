//! Pools, and their slots.

/// A pool's region of `POOL_SLOTS`: its Maglev table of backend indexes.
///
/// Eight bytes, aligned: the agent writes a new region first and then switches the pool to it by
/// one store, so a packet sees either the old table or the new one. An empty pool has no slots.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    pub offset: u32,
    pub size: u32,
}

/// Two slots as an element of `POOL_SLOTS`: the kernel gives every element of an array eight bytes
/// at least, and a single slot would waste half of them.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotPair {
    pub backends: [u32; 2],
}

/// Index 0 stays empty: the pool of a frontend that has none in this scope.
pub const NO_POOL: u32 = 0;

const _: () = assert!(size_of::<Pool>() == 8 && align_of::<Pool>() == 8);
const _: () = assert!(size_of::<SlotPair>() == 8 && align_of::<SlotPair>() == 8);

impl Pool {
    /// The two fields as one word, as they are swapped.
    pub fn to_word(self) -> u64 {
        let [a, b, c, d] = self.offset.to_ne_bytes();
        let [e, f, g, h] = self.size.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        if cfg!(target_endian = "little") {
            Self { offset: word as u32, size: (word >> 32) as u32 }
        } else {
            Self { offset: (word >> 32) as u32, size: word as u32 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_the_fields_as_they_lie_in_memory() {
        let pool = Pool { offset: 0x0102_0304, size: 0x0a0b_0c0d };
        assert_eq!(Pool::from_word(pool.to_word()), pool);
    }
}
