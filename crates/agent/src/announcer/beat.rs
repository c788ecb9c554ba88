//! Whether the agent's loop runs, for the thread that announces addresses.
//!
//! While it does not, changes of Services and endpoints are not programmed. Another node should serve
//! the addresses then, if there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::perform::read_deadline_clock;
use lb_announce::Time;

/// A loop that has not run for so long is stuck. It runs each second, and one change of all Services
/// of a large cluster takes some seconds.
const BEAT_LIMIT: Duration = Duration::from_secs(15);
/// The thread runs several times a second. After a longer pause the process stood still, and the loop
/// with it.
const PAUSE: Duration = Duration::from_secs(1);

/// The loop's side.
#[derive(Clone, Debug, Default)]
pub struct Beat(Arc<AtomicU64>);

impl Beat {
    /// The loop runs.
    pub fn renew(&self) {
        self.0.store(read_deadline_clock().as_nanos() as u64, Ordering::Relaxed);
    }

    /// When the loop ran last; zero: it has not begun.
    fn last(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The thread's side.
pub(crate) struct BeatWatch {
    beat: Beat,
    looked_at: Time,
    resumed_at: Time,
}

impl BeatWatch {
    pub fn new(beat: Beat) -> Self {
        Self { beat, looked_at: Time::ZERO, resumed_at: Time::ZERO }
    }

    /// Whether the loop is stuck. To be called as often as the thread runs.
    pub(crate) fn is_stuck(&mut self, now: Time) -> bool {
        if now.saturating_sub(self.looked_at) > PAUSE {
            self.resumed_at = now;
        }
        self.looked_at = now;
        let last = self.beat.last();
        !last.is_zero() && now.saturating_sub(last.max(self.resumed_at)) > BEAT_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck_after(beat: &Beat, start: Time, seconds: u64, step: Duration) -> bool {
        let mut watch = BeatWatch::new(beat.clone());
        let end = start + Duration::from_secs(seconds);
        let mut now = start;
        while now < end {
            watch.is_stuck(now);
            now += step;
        }
        watch.is_stuck(end)
    }

    #[test]
    fn a_loop_that_stops_is_stuck_after_a_while_and_one_that_has_not_begun_is_not() {
        let step = Duration::from_millis(100);
        let beat = Beat::default();
        let start = Duration::from_secs(1_000);
        assert!(!stuck_after(&beat, start, 60, step));
        beat.0.store(start.as_nanos() as u64, Ordering::Relaxed);
        assert!(!stuck_after(&beat, start, 14, step));
        assert!(stuck_after(&beat, start, 17, step));
        let later = start + Duration::from_secs(16);
        beat.0.store(later.as_nanos() as u64, Ordering::Relaxed);
        assert!(!stuck_after(&beat, start, 17, step), "it runs again");
    }

    /// The addresses of a node must not move because its process was stopped for a moment.
    #[test]
    fn a_process_that_stood_still_is_not_stuck() {
        let beat = Beat::default();
        let start = Duration::from_secs(1_000);
        beat.0.store(start.as_nanos() as u64, Ordering::Relaxed);
        let mut watch = BeatWatch::new(beat);
        assert!(!watch.is_stuck(start));
        let resumed = start + Duration::from_secs(600);
        assert!(!watch.is_stuck(resumed));
        assert!(!watch.is_stuck(resumed + Duration::from_millis(500)));
    }
}
