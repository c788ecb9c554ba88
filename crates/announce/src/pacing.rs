//! When gratuitous frames are sent: at once when an address was taken, and repeatedly for clients
//! and switches that missed or forgot the first ones.

use std::time::Duration;

use lb_limits::{Rate, RateLimiter};

use super::timing::Time;

/// Linux ignores a second change of a neighbour's address within its `locktime`, one second. So
/// the first repetition comes later than that.
const FIRST_REPEAT_GAP: Duration = Duration::from_millis(1_100);

/// Switches forget the port of a link-layer address after five minutes or more.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// Frames that are sent: 1,000 at once, and then 1,000 each second. Storm control of switches lets them through.
const FRAME_RATE: Rate = Rate::new(Duration::from_millis(1), 1_000);

/// The frames of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePacing {
    due: Time,
    gap: Duration,
}

impl FramePacing {
    /// The first frame is due now.
    pub fn start(now: Time) -> Self {
        Self { due: now, gap: FIRST_REPEAT_GAP }
    }

    pub(crate) fn next_frame_at(&self) -> Time {
        self.due
    }

    /// Whether this is the first frame.
    pub fn is_first(&self) -> bool {
        self.gap == FIRST_REPEAT_GAP
    }

    /// A frame was sent.
    pub(crate) fn note_frame_sent(&mut self, now: Time) {
        self.due = now + self.gap;
        self.gap = (self.gap * 2).min(REFRESH_INTERVAL);
    }
}

/// The limit for all addresses of a link.
pub(crate) fn limit_frames() -> RateLimiter<Time> {
    RateLimiter::new(FRAME_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_grow_from_more_than_the_locktime_to_a_minute() {
        let mut pacing = FramePacing::start(Time::ZERO);
        let mut times = Vec::new();
        for _ in 0..10 {
            times.push(pacing.next_frame_at().as_millis());
            pacing.note_frame_sent(pacing.next_frame_at());
        }
        assert_eq!(times[..5], [0, 1_100, 3_300, 7_700, 16_500]);
        assert_eq!(times[9] - times[8], 60_000);
    }

    #[test]
    fn all_addresses_together_are_limited() {
        let mut allowance = limit_frames();
        let sent = |allowance: &mut RateLimiter<Time>, now| {
            (0..5_000).filter(|_| allowance.take(now)).count()
        };
        assert_eq!(sent(&mut allowance, Time::ZERO), 1_000);
        assert_eq!(sent(&mut allowance, Time::from_millis(100)), 100);
        assert_eq!(sent(&mut allowance, Time::from_secs(60)), 1_000);
    }
}
