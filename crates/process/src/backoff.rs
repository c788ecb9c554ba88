//! Delays between attempts, the same for all requests and writes.

use std::time::Duration;

use lb_limits::apply_jitter;

const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Doubles with every failure. Waits are random between half of that and all of it, so that the
/// agents of all nodes do not connect to a restarted server at the same time.
#[derive(Debug)]
pub struct Backoff(lb_limits::Backoff);

impl Default for Backoff {
    fn default() -> Self {
        Self(lb_limits::Backoff::new(FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY))
    }
}

impl Backoff {
    pub fn reset(&mut self) {
        self.0.reset();
    }

    pub fn next_delay(&mut self) -> Duration {
        let whole = self.0.fail();
        apply_jitter(whole, whole / 2, random())
    }
}

/// A random part of a time, so that the agents of all nodes spread over it.
pub fn random_part_of(whole: Duration) -> Duration {
    apply_jitter(whole, whole, random())
}

fn random() -> u32 {
    // Without randomness the wait is the longest: slower, but safe.
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_start_again() {
        let mut backoff = Backoff::default();
        let first = backoff.next_delay();
        assert!(first >= FIRST_RETRY_DELAY / 2 && first <= FIRST_RETRY_DELAY, "{first:?}");
        let waits: Vec<Duration> = (0..40).map(|_| backoff.next_delay()).collect();
        assert!(waits.iter().all(|wait| *wait <= LONGEST_RETRY_DELAY), "{waits:?}");
        assert!(waits[39] >= LONGEST_RETRY_DELAY / 2, "{waits:?}");
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST_RETRY_DELAY);
    }
}
