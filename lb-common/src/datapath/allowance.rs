//! Rate limit for generated packets (resets, ICMP errors): a spoofed flood must not be answered in
//! full.

use crate::layout::Ticks;

/// One CPU's allowance, which refills over time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Packets sent and not regained yet.
    used: u32,
    /// The time of the last update.
    since: Ticks,
}

impl Allowance {
    /// Packets that may be sent in a burst.
    pub const BURST: u32 = 256;
    /// Packets per tick of 16.8 ms in the long run: about 1,000 a second.
    pub const PER_TICK: u32 = 17;

    #[inline(always)]
    pub fn take(&mut self, now: Ticks) -> bool {
        let ticks = now.0.wrapping_sub(self.since.0);
        // The allowance is full long before the product could overflow.
        let regained = if ticks > Self::BURST { Self::BURST } else { ticks * Self::PER_TICK };
        self.used = self.used.saturating_sub(regained);
        self.since = now;
        let some_left = self.used < Self::BURST;
        if some_left {
            self.used += 1;
        }
        some_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(allowance: &mut Allowance, now: Ticks, packets: u32) -> u32 {
        (0..packets).map(|_| u32::from(allowance.take(now))).sum()
    }

    #[test]
    fn a_burst_is_allowed_and_a_flood_is_not() {
        let mut allowance = Allowance::default();
        assert_eq!(allowed(&mut allowance, Ticks(5), 10_000), Allowance::BURST);
        assert_eq!(allowed(&mut allowance, Ticks(6), 10_000), Allowance::PER_TICK);
        assert_eq!(allowed(&mut allowance, Ticks(6 + 1000), 10_000), Allowance::BURST);
    }
}
