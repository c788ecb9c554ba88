//! Rate limits of each CPU for packets that the data plane makes: a spoofed flood must not be answered
//! in full.

use crate::layout::Ticks;

/// Resets, ICMP errors and replies to probes: about 1,000 a second.
pub type Rejections = Allowance<256, 17>;

/// Reports of packets to a command that listens.
pub type Reports = Rejections;

/// Questions to other nodes about a connection, and packets that are returned as an answer: about 16,000 a
/// second. When a router moves all connections at once, one of each may be needed.
pub type Questions = Allowance<4_096, 272>;

/// One CPU's allowance, which refills over time: `BURST` packets at once, and `PER_TICK` in each tick of
/// 16.8 ms in the long run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance<const BURST: u32, const PER_TICK: u32> {
    /// Packets sent and not regained yet.
    used: u32,
    /// The time of the last update.
    since: Ticks,
}

impl<const BURST: u32, const PER_TICK: u32> Allowance<BURST, PER_TICK> {
    pub const BURST: u32 = BURST;
    pub const PER_TICK: u32 = PER_TICK;

    #[inline(always)]
    pub fn take(&mut self, now: Ticks) -> bool {
        let ticks = now.0.wrapping_sub(self.since.0);
        // The allowance is full long before the product could overflow.
        let regained = if ticks > BURST { BURST } else { ticks * PER_TICK };
        self.used = self.used.saturating_sub(regained);
        self.since = now;
        let some_left = self.used < BURST;
        if some_left {
            self.used += 1;
        }
        some_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const BURST: u32, const PER_TICK: u32>() {
        let mut allowance = Allowance::<BURST, PER_TICK>::default();
        let mut allowed =
            |now, packets| (0..packets).map(|_| u32::from(allowance.take(Ticks(now)))).sum::<u32>();
        assert_eq!(allowed(5, 10_000), BURST);
        assert_eq!(allowed(6, 10_000), PER_TICK);
        assert_eq!(allowed(6 + BURST, 10_000), BURST);
        assert_eq!(allowed(u32::MAX, 10_000), BURST);
    }

    #[test]
    fn a_burst_is_allowed_and_a_flood_is_not() {
        check::<{ Rejections::BURST }, { Rejections::PER_TICK }>();
        check::<{ Questions::BURST }, { Questions::PER_TICK }>();
        let a_second = |per_tick: u32| (u64::from(per_tick) * 1_000_000_000) >> 24;
        assert_eq!(a_second(Rejections::PER_TICK), 1_013);
        assert_eq!(a_second(Questions::PER_TICK), 16_212);
    }
}
