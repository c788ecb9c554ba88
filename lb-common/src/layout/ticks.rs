//! Time.

use crate::branchless::at_least_zero;

/// Time in units of 2^24 ns (16.8 ms), modulo 2^32 (834 days).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks(pub u32);

impl Ticks {
    /// A time span.
    #[inline(always)]
    pub const fn in_seconds(seconds: u32) -> u32 {
        ((seconds as u64 * 1_000_000_000) >> 24) as u32
    }

    #[inline(always)]
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self((nanoseconds >> 24) as u32)
    }

    /// For display. A float, which BPF does not have.
    #[cfg(feature = "std")]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        f64::from(self.since(earlier)) * f64::from(1 << 24) / 1e9
    }

    /// The time that has passed; 0 if `earlier` is later: another CPU's clock may have been read a
    /// tick ahead.
    #[inline(always)]
    pub fn since(self, earlier: Self) -> u32 {
        at_least_zero(self.0.wrapping_sub(earlier.0))
    }
}
