//! How many packets of our own making may be sent: a spoofed flood is not to be answered in full.

use crate::layout::Ticks;

/// One processor's allowance: it fills up as time goes by.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// What has been used of it, in ticks' worth.
    used: u32,
    /// When that was so.
    since: Ticks,
}

impl Allowance {
    /// So many answers may come at once.
    pub const BURST: u32 = 256;
    /// So many in the long run, each tick of 16.8 ms: about 1,000 a second.
    pub const PER_TICK: u32 = 17;

    #[inline(always)]
    pub fn take(&mut self, now: Ticks) -> bool {
        let ticks = now.0.wrapping_sub(self.since.0);
        // Long before the product could overflow, all of it is there again.
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

    fn answers(allowance: &mut Allowance, now: Ticks, packets: u32) -> u32 {
        (0..packets).map(|_| u32::from(allowance.take(now))).sum()
    }

    #[test]
    fn a_burst_is_answered_and_a_flood_is_not() {
        let mut allowance = Allowance::default();
        assert_eq!(answers(&mut allowance, Ticks(5), 10_000), Allowance::BURST);
        assert_eq!(answers(&mut allowance, Ticks(6), 10_000), Allowance::PER_TICK);
        assert_eq!(answers(&mut allowance, Ticks(6 + 1000), 10_000), Allowance::BURST);
    }
}
