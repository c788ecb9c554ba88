//! Measures how long a change of endpoints takes from the cluster to the kernel.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use lb_rules::model::AddressFamily;

/// Changes that are not programmed yet.
#[derive(Debug)]
pub(crate) struct Latency {
    /// Earlier changes are not measured.
    since: Timestamp,
    waiting: Vec<(AddressFamily, Timestamp)>,
}

impl Latency {
    pub fn new(since: SystemTime) -> Self {
        let since = Timestamp::try_from(since).unwrap_or(Timestamp::MAX);
        Self { since, waiting: Vec::new() }
    }

    /// Handles a slice, with its trigger time and that of its previous version. It is measured if
    /// it reports another change.
    pub fn come(
        &mut self,
        family: AddressFamily,
        before: Option<Timestamp>,
        now: Option<Timestamp>,
    ) {
        let Some(time) = now else { return };
        if time >= self.since && before != Some(time) {
            self.waiting.push((family, time));
        }
    }

    /// All changes so far are programmed. Clocks of two machines differ, so results are at least 0.
    pub fn record_programmed(&mut self, now: SystemTime) -> Vec<(AddressFamily, Duration)> {
        let now = Timestamp::try_from(now).unwrap_or(Timestamp::MIN);
        let since = |time: Timestamp| now.duration_since(time).try_into().unwrap_or_default();
        self.waiting.drain(..).map(|(family, time)| (family, since(time))).collect()
    }
}

#[cfg(test)]
mod tests {
    use AddressFamily::V4;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn trigger(time: &str) -> Option<Timestamp> {
        Some(time.parse().expect("a time"))
    }

    #[test]
    fn a_change_is_measured_once_from_when_it_happened() {
        let mut latency = Latency::new(at(100));
        let first = trigger("1970-01-01T00:02:00.5Z");
        latency.come(V4, None, first);
        // Written again for another reason.
        latency.come(V4, first, first);
        assert_eq!(latency.record_programmed(at(122)), [(V4, Duration::from_millis(1_500))]);
        assert!(latency.record_programmed(at(123)).is_empty());
        latency.come(V4, first, trigger("1970-01-01T00:02:05Z"));
        assert_eq!(
            latency.record_programmed(at(121)),
            [(V4, Duration::ZERO)],
            "another machine's clock"
        );
    }

    #[test]
    fn changes_before_the_start_are_not_measured() {
        let mut latency = Latency::new(at(100));
        latency.come(V4, None, trigger("1970-01-01T00:01:00Z"));
        latency.come(V4, None, None);
        assert!(latency.record_programmed(at(122)).is_empty());
    }
}
