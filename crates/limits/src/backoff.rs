//! How long to wait between attempts.

use std::time::Duration;

/// A wait that doubles with every failure in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// After a success, the next failure is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure. Returns the wait before the next attempt, without jitter.
    pub fn fail(&mut self) -> Duration {
        let factor = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// A time between `whole - range` and `whole`, which `random` chooses: clients that failed at the same time do not try
/// again at the same time.
pub fn apply_jitter(whole: Duration, range: Duration, random: u32) -> Duration {
    whole.saturating_sub(range.mul_f64(f64::from(random) / f64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest_and_start_again() {
        let mut backoff = Backoff::new(SECOND, 10 * SECOND);
        let waits = [(); 6].map(|()| backoff.fail().as_secs());
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        (0..100).for_each(|_| _ = backoff.fail());
        assert_eq!(backoff.fail(), 10 * SECOND);
        backoff.reset();
        assert_eq!(backoff.fail(), SECOND);
    }

    #[test]
    fn jitter_shortens_a_wait_by_at_most_its_range() {
        assert_eq!(apply_jitter(8 * SECOND, 2 * SECOND, 0), 8 * SECOND);
        assert_eq!(apply_jitter(8 * SECOND, 2 * SECOND, u32::MAX), 6 * SECOND);
        assert_eq!(apply_jitter(SECOND, 2 * SECOND, u32::MAX), Duration::ZERO);
    }
}
