//! When to report changes: the first one after a quiet time at once, those of a burst together.

use std::time::{Duration, Instant};

/// Minimum time between reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct ReportPace {
    last: Option<Instant>,
}

impl Pace {
    /// The time at which a present change may be reported.
    pub fn due(&self, now: Instant) -> Instant {
        self.last.map_or(now, |last| now.max(last + INTERVAL))
    }

    pub fn reported(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_change_is_reported_at_once_and_a_burst_once_per_interval() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut pace = Pace::default();
        assert_eq!(pace.due(start), start, "the first");
        pace.reported(start);
        assert_eq!(pace.due(at(1)), at(100), "the burst behind it");
        assert_eq!(pace.due(at(99)), at(100));
        pace.reported(at(100));
        assert_eq!(pace.due(at(101)), at(200));
        assert_eq!(pace.due(at(5000)), at(5000), "after a quiet time");
    }
}
