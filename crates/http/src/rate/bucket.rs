//! The generic cell rate algorithm (ITU-T I.371): a leaky bucket that is one time, at which it will be empty.

use std::time::Duration;

/// Nanoseconds since the limiter was made. 0: the bucket is empty since then.
pub(super) type Nanos = u64;

/// In any window of the length w, at most `1 + burst + w / interval` requests pass, as with nginx's `limit_req` with
/// `nodelay`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    interval: Nanos,
    /// How long the bucket may need to become empty for one more request to pass.
    tolerance: Nanos,
}

impl Rate {
    /// `count` requests in each `period`, and `count * burst_multiplier` more at once. A count of 0 counts as 1.
    pub fn new(count: u32, period: Duration, burst_multiplier: u32) -> Self {
        let count = u64::from(count.max(1));
        // Rounded up, so that rounding never admits more.
        let interval = (period.as_nanos() as u64).div_ceil(count);
        let burst = count.saturating_mul(u64::from(burst_multiplier));
        Self { interval, tolerance: interval.saturating_mul(burst) }
    }

    /// The bucket after one more request, or how long it has to wait.
    pub fn admit(self, empty_at: Nanos, now: Nanos) -> Result<Nanos, Duration> {
        let wait = empty_at.saturating_sub(now).saturating_sub(self.tolerance);
        if wait > 0 {
            return Err(Duration::from_nanos(wait));
        }
        Ok(empty_at.max(now).saturating_add(self.interval))
    }
}
