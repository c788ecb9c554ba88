//! Delays between attempts.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles with every failure. Waits are random between half of that and all of it, so that the
/// agents of all nodes do not connect to a restarted server at the same time.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    pub fn next_delay(&mut self) -> Duration {
        let factor = 2u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        let whole = FIRST.saturating_mul(factor).min(LONGEST);
        whole / 2 + random_up_to(whole / 2)
    }
}

/// A random part of a time, so that the agents of all nodes spread over it.
pub fn random_up_to(whole: Duration) -> Duration {
    // Without randomness the wait is the longest: slower, but safe.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_start_again() {
        let mut backoff = Backoff::default();
        let first = backoff.next_delay();
        assert!(first >= FIRST / 2 && first <= FIRST, "{first:?}");
        let waits: Vec<Duration> = (0..40).map(|_| backoff.next_delay()).collect();
        assert!(waits.iter().all(|wait| *wait <= LONGEST), "{waits:?}");
        assert!(waits[39] >= LONGEST / 2, "{waits:?}");
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
    }
}
