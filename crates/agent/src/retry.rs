//! When to retry a failed write, and whether the failure has been reported.

use std::time::Instant;

use lb_process::backoff::Backoff;

/// For writes that succeed or fail together.
#[derive(Debug, Default)]
pub struct Retry {
    backoff: Option<Backoff>,
    at: Option<Instant>,
}

impl Retry {
    /// When the next attempt is due; `None`: nothing has failed.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns whether this is the first failure since the last success.
    pub fn fail(&mut self, now: Instant) -> bool {
        let is_first = self.backoff.is_none();
        self.at = Some(now + self.backoff.get_or_insert_default().next_delay());
        is_first
    }

    /// Returns whether an attempt had failed.
    pub fn succeed(&mut self) -> bool {
        self.at = None;
        self.backoff.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_and_the_first_success_after_it_are_distinguished() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        assert!(!retry.succeed());
        assert_eq!(retry.at(), None);
        assert!(retry.fail(now));
        assert!(!retry.fail(now));
        assert!(retry.at() > Some(now));
        assert!(retry.succeed());
        assert_eq!(retry.at(), None);
        assert!(retry.fail(now));
    }
}
