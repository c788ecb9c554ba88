//! When to connect again.

use std::time::Duration;

use lb_limits::apply_jitter;

const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(30);
/// A session that lasted at least this long was no failure.
const STABLE_SESSION_DURATION: Duration = Duration::from_secs(60);

/// Doubles with every failure. The seed spreads the nodes that lost the same router.
#[derive(Clone, Debug)]
pub(crate) struct ConnectBackoff {
    waits: lb_limits::Backoff,
    random: u64,
}

impl ConnectBackoff {
    pub fn new(seed: u64) -> Self {
        Self {
            waits: lb_limits::Backoff::new(FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY),
            random: seed,
        }
    }

    pub(crate) fn after_failure(&mut self) -> Duration {
        let wait = self.waits.fail();
        self.jittered(wait)
    }

    pub(crate) fn after_session(&mut self, lasted: Duration) -> Duration {
        if lasted >= STABLE_SESSION_DURATION {
            self.waits.reset();
        }
        self.after_failure()
    }

    /// Between three quarters and all of a time (RFC 4271, section 10).
    pub fn jittered(&mut self, whole: Duration) -> Duration {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        apply_jitter(whole, whole / 4, (mixed >> 32) as u32)
    }
}
