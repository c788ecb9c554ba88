//! Bounds how often one event is logged: the first few of a minute one by one, then a count.

use std::time::Duration;

use tokio::time::Instant;

/// The occurrences of one event within an interval.
#[derive(Debug, Default)]
pub(crate) struct NoticeBurst {
    /// When the interval ends; `None` before the first occurrence.
    ends: Option<Instant>,
    logged: u32,
    counted: u64,
}

/// What to do with one occurrence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoticeAdmission {
    Logged,
    /// `report_at` is set for the first one that is only counted: the count is due then.
    Counted {
        report_at: Option<Instant>,
    },
}

impl NoticeBurst {
    pub const INTERVAL: Duration = Duration::from_secs(60);
    /// How many occurrences of an interval are logged one by one.
    pub(crate) const LOGGED: u32 = 10;

    /// Decides whether an occurrence is logged. Call [`Self::end`] first: the count of an interval that is over is lost
    /// otherwise.
    pub fn admit(&mut self, now: Instant) -> NoticeAdmission {
        let ends = match self.ends {
            Some(ends) if now < ends => ends,
            _ => {
                let ends = now + Self::INTERVAL;
                *self = Self { ends: Some(ends), ..Self::default() };
                ends
            }
        };
        if self.logged < Self::LOGGED {
            self.logged += 1;
            return NoticeAdmission::Logged;
        }
        self.counted += 1;
        NoticeAdmission::Counted { report_at: (self.counted == 1).then_some(ends) }
    }

    /// Ends the interval if it is over. Returns how many occurrences were only counted.
    pub fn end(&mut self, now: Instant) -> Option<u64> {
        if self.ends.is_none_or(|ends| now < ends) {
            return None;
        }
        Some(std::mem::take(self).counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(burst: &mut NoticeBurst, times: u32, now: Instant) -> usize {
        (0..times).filter(|_| burst.admit(now) == NoticeAdmission::Logged).count()
    }

    #[test]
    fn the_first_ones_are_logged_and_the_rest_is_counted() {
        let start = Instant::now();
        let end = start + NoticeBurst::INTERVAL;
        let mut burst = NoticeBurst::default();
        assert_eq!(burst.end(start), None);
        assert_eq!(logged(&mut burst, NoticeBurst::LOGGED, start), 10);
        assert_eq!(burst.admit(start), NoticeAdmission::Counted { report_at: Some(end) });
        assert_eq!(burst.admit(start), NoticeAdmission::Counted { report_at: None });
        let later = end - Duration::from_millis(1);
        assert_eq!(logged(&mut burst, 998, later), 0);
        assert_eq!(burst.end(later), None);
        assert_eq!(burst.end(end), Some(1000));
        assert_eq!(burst.end(end), None, "a count is reported once");
    }

    #[test]
    fn an_interval_begins_with_its_first_occurrence() {
        let start = Instant::now();
        let mut burst = NoticeBurst::default();
        assert_eq!(logged(&mut burst, 3, start), 3);
        assert_eq!(burst.end(start + NoticeBurst::INTERVAL), Some(0));
        let second = start + 10 * NoticeBurst::INTERVAL;
        assert_eq!(logged(&mut burst, 12, second), 10);
        assert_eq!(burst.end(second + NoticeBurst::INTERVAL / 2), None);
        assert_eq!(burst.end(second + NoticeBurst::INTERVAL), Some(2));
    }

    #[test]
    fn one_occurrence_a_minute_is_always_logged() {
        let start = Instant::now();
        let mut burst = NoticeBurst::default();
        for minute in 0..30 {
            let now = start + minute * NoticeBurst::INTERVAL;
            assert!(burst.end(now).is_none_or(|counted| counted == 0));
            assert_eq!(burst.admit(now), NoticeAdmission::Logged);
        }
    }
}
