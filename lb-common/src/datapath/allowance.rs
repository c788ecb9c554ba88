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

/// Answers from assigned addresses to one source: about 240 a second.
type OfSource = Allowance<128, 4>;

/// Echo replies to all sources: about 4,000 a second.
type Echoes = Allowance<1_024, 68>;

/// Refusals of unknown ports to all sources: about 480 a second. Half of what [`Rejections`] allows, so that scans of
/// ports leave something for errors about packets that are too big, and for probes.
type Refusals = Allowance<192, 8>;

/// An answer from an assigned address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Echo,
    Refusal,
}

/// What one CPU may answer from assigned addresses: of each source a share, so that one that asks too often leaves
/// something for others, and of all together so much that spoofed sources gain little. Sources whose hashes have the
/// same number share one allowance.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Answers {
    sources: [OfSource; Self::SOURCES as usize],
    echoes: Echoes,
    refusals: Refusals,
}

impl Answers {
    /// A power of two.
    pub const SOURCES: u32 = 512;

    #[inline(always)]
    pub fn take(&mut self, answer: Answer, source: u32, now: Ticks) -> bool {
        let of_source = &mut self.sources[(source & (Self::SOURCES - 1)) as usize];
        of_source.take(now)
            && match answer {
                Answer::Echo => self.echoes.take(now),
                Answer::Refusal => self.refusals.take(now),
            }
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            sources: [OfSource::default(); Self::SOURCES as usize],
            echoes: Echoes::default(),
            refusals: Refusals::default(),
        }
    }
}

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
        assert_eq!(a_second(OfSource::PER_TICK), 238);
        assert_eq!(a_second(Echoes::PER_TICK), 4_053);
        assert_eq!(a_second(Refusals::PER_TICK), 476);
    }

    #[test]
    fn a_source_that_asks_too_often_leaves_answers_to_others() {
        let mut answers = Answers::default();
        let mut answered = |source, now, count| {
            let asked = (0..count).map(|_| answers.take(Answer::Echo, source, Ticks(now)));
            asked.map(u32::from).sum::<u32>()
        };
        assert_eq!(answered(7, 5, 10_000), OfSource::BURST);
        assert_eq!(answered(8, 5, 1), 1);
        assert_eq!(answered(7, 6, 10_000), OfSource::PER_TICK);
        assert_eq!(answered(7 + Answers::SOURCES, 6, 1), 0, "the same number");
    }

    #[test]
    fn many_sources_get_no_more_answers_than_the_limit_of_all() {
        let mut answers = Answers::default();
        let mut answered = |answer, now| {
            let asked = (0..100_000).map(|source| answers.take(answer, source, Ticks(now)));
            asked.map(u32::from).sum::<u32>()
        };
        assert_eq!(answered(Answer::Refusal, 5), Refusals::BURST);
        assert_eq!(answered(Answer::Refusal, 6), Refusals::PER_TICK);
        const {
            assert!(Refusals::BURST < Rejections::BURST);
            assert!(Refusals::PER_TICK < Rejections::PER_TICK);
        }
        assert_eq!(answered(Answer::Echo, 100), Echoes::BURST, "whatever was refused");
        assert_eq!(answered(Answer::Echo, 101), Echoes::PER_TICK);
    }
}
