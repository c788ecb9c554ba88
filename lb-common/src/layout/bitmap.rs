//! The prefilter: bitmaps that exclude most packets at the cost of one load.

use crate::family::{Address, Family};
use crate::hash::mix;

/// 64-bit words of the bitmap of frontends' addresses. 8 KiB: it stays in the L1 cache.
pub const DESTINATION_WORDS: u32 = 1 << 10;

/// 64-bit words of the bitmap of backends' addresses and ports: 64 KiB.
pub const SOURCE_WORDS: u32 = 1 << 13;

/// One bit: a word's index and the bit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bitmap {
    pub word: u32,
    pub bit: u64,
}

impl Bitmap {
    /// The bit of an address that some frontend has; NodePorts set the node's own addresses.
    #[inline(always)]
    pub fn destination<F: Family>(address: F::Address) -> Self {
        let [first, second] = address.words();
        Self::at(mix(first ^ second.rotate_left(29)), DESTINATION_WORDS)
    }

    /// The bit of a backend's address and port.
    #[inline(always)]
    pub fn source<F: Family>(address: F::Address, port: u16, protocol: u8) -> Self {
        let [first, second] = address.words();
        let end = u64::from(port) << 40 | u64::from(protocol) << 32;
        Self::at(mix(first ^ second.rotate_left(29) ^ end), SOURCE_WORDS)
    }

    #[inline(always)]
    fn at(hash: u64, words: u32) -> Self {
        Self { word: (hash >> 6) as u32 & (words - 1), bit: 1 << (hash & 63) }
    }
}
