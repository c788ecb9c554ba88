//! How often something may happen, by the generic cell rate algorithm (ITU-T I.371): a leaky bucket that is a single
//! time, at which it will be empty.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A time of any clock: `Instant`, or the time since some start.
pub trait Moment: Copy + Ord + Add<Duration, Output = Self> + Sub<Output = Duration> {}

impl<T: Copy + Ord + Add<Duration, Output = T> + Sub<Output = Duration>> Moment for T {}

/// In any window of the length w, at most `burst + w / interval` events happen.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    interval: Duration,
    /// How long the bucket may need to become empty for one more event to be admitted.
    tolerance: Duration,
}

impl Rate {
    /// One event in each `interval` in the long run, and `burst` at once. A burst of 0 counts as 1.
    pub const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, tolerance: interval.saturating_mul(burst.saturating_sub(1)) }
    }

    /// When the bucket is empty after one more event, or how long this event has to wait. `empty_at`: when the
    /// bucket will be empty without it.
    pub fn admit<T: Moment>(self, empty_at: T, now: T) -> Result<T, Duration> {
        let wait = if empty_at > now { empty_at - now } else { Duration::ZERO };
        if wait > self.tolerance {
            return Err(wait - self.tolerance);
        }
        Ok(empty_at.max(now) + self.interval)
    }
}

/// The events of one rate, so far.
#[derive(Clone, Copy, Debug)]
pub struct RateLimiter<T> {
    rate: Rate,
    /// `None` before the first event.
    empty_at: Option<T>,
}

impl<T: Moment> RateLimiter<T> {
    pub const fn new(rate: Rate) -> Self {
        Self { rate, empty_at: None }
    }

    /// Counts an event that happens now; false if it must not.
    pub fn take(&mut self, now: T) -> bool {
        let admitted = self.rate.admit(self.empty_at.unwrap_or(now), now);
        self.empty_at = admitted.ok().or(self.empty_at);
        admitted.is_ok()
    }

    /// When the next event may happen: now, or later.
    pub fn due(&self, now: T) -> T {
        match self.rate.admit(self.empty_at.unwrap_or(now), now) {
            Ok(_) => now,
            Err(wait) => now + wait,
        }
    }

    /// Counts an event that will happen as soon as it may, and returns when.
    pub fn reserve(&mut self, now: T) -> T {
        let due = self.due(now);
        self.empty_at =
            Some(self.empty_at.map_or(now, |empty_at| empty_at.max(now)) + self.rate.interval);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let mut limiter = RateLimiter::new(Rate::new(SECOND, 3));
        let mut admitted = |now| (0..100).filter(|_| limiter.take(now)).count();
        assert_eq!(admitted(10 * SECOND), 3);
        assert_eq!(admitted(11 * SECOND), 1);
        assert_eq!(admitted(11 * SECOND + SECOND / 2), 0);
        assert_eq!(admitted(13 * SECOND), 2);
        assert_eq!(admitted(100 * SECOND), 3);
    }

    #[test]
    fn a_single_event_is_due_at_once_and_a_burst_once_per_interval() {
        let mut limiter = RateLimiter::new(Rate::new(SECOND, 1));
        assert_eq!(limiter.due(SECOND), SECOND, "the first");
        assert!(limiter.take(SECOND));
        assert_eq!(limiter.due(SECOND * 3 / 2), 2 * SECOND);
        assert!(!limiter.take(SECOND * 3 / 2));
        assert!(limiter.take(2 * SECOND));
        assert_eq!(limiter.due(2 * SECOND), 3 * SECOND);
        assert_eq!(limiter.due(50 * SECOND), 50 * SECOND, "after a quiet time");
    }

    #[test]
    fn reserved_events_are_one_interval_apart() {
        let mut limiter = RateLimiter::new(Rate::new(SECOND, 2));
        let reserved =
            |limiter: &mut RateLimiter<Duration>, now| [(); 4].map(|()| limiter.reserve(now));
        assert_eq!(reserved(&mut limiter, SECOND), [1, 1, 2, 3].map(|at| at * SECOND));
        assert_eq!(reserved(&mut limiter, 50 * SECOND), [50, 50, 51, 52].map(|at| at * SECOND));
    }

    #[test]
    fn an_event_that_must_wait_is_not_counted() {
        let rate = Rate::new(SECOND, 1);
        let empty_at = rate.admit(Duration::ZERO, Duration::ZERO).unwrap();
        assert_eq!(rate.admit(empty_at, SECOND / 4), Err(SECOND * 3 / 4));
        assert_eq!(rate.admit(empty_at, SECOND), Ok(2 * SECOND));
    }
}
