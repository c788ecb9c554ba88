//! How a kind is read next, and from which version. Pure.
//!
//! Invariant: a state older than the reported one is never requested, except the most recent one
//! of a server that does not know the reported version, such as one restored from a backup.

use super::trouble::Trouble;

/// A list of this version may be of any age. Servers have it at hand.
const ANY: &str = "0";

/// The next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Changes after this version.
    Watch(String),
    /// All objects as they are at this version or later, as the first events of a watch.
    Stream(String),
    /// All objects as they are at this version or later, as a list.
    List(String),
    /// The most recent state, in pages. The server reads it from its storage.
    ListLatest,
}

#[derive(Debug)]
pub struct Position {
    /// The version of the state that was reported.
    reported: Option<String>,
    /// Whether a watch can continue from there.
    is_watchable: bool,
    /// Whether the server knows no version that is as new as the reported one.
    needs_latest: bool,
    /// Whether watches can begin with all objects.
    streams: bool,
    /// Whether the last such watch failed before all objects had been sent. The next list is no
    /// stream then: a proxy may be in the way, or the server's storage may not report its progress,
    /// without which a stream never gets to its end.
    has_failed_stream: bool,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            reported: None,
            is_watchable: false,
            needs_latest: false,
            streams: true,
            has_failed_stream: false,
        }
    }
}

impl Position {
    /// The version up to which everything has been reported, if a watch can continue from there.
    pub(crate) fn watchable(&self) -> Option<&str> {
        self.reported.as_deref().filter(|_| self.is_watchable)
    }

    pub fn next(&self) -> Step {
        match &self.reported {
            Some(version) if self.is_watchable => Step::Watch(version.clone()),
            _ if self.needs_latest => Step::ListLatest,
            reported => {
                let from = reported.clone().unwrap_or_else(|| ANY.to_owned());
                let streams = self.streams && !self.has_failed_stream;
                if streams { Step::Stream(from) } else { Step::List(from) }
            }
        }
    }

    /// All objects of this version have been reported.
    pub fn listed(&mut self, version: &str) {
        self.moved_to(version);
        self.is_watchable = true;
        self.needs_latest = false;
        self.has_failed_stream = false;
    }

    /// All changes up to this version have been reported.
    pub(crate) fn moved_to(&mut self, version: &str) {
        if is_version(version) {
            self.reported = Some(version.to_owned());
        }
    }

    /// The next request must be a list: another set of objects is selected.
    pub(crate) fn list_again(&mut self) {
        self.is_watchable = false;
    }

    /// A request has failed. Returns whether that was to be expected of some servers, and another
    /// kind of request is next that they understand.
    ///
    /// Whatever is wrong with a stream, a list is next: progress is better than waiting for ever.
    pub fn failed(&mut self, step: &Step, trouble: &Trouble) -> bool {
        // A stream whose list is complete has become a watch.
        let step = if self.is_watchable { self.next() } else { step.clone() };
        match (&step, trouble) {
            (Step::Watch(_), Trouble::Expired | Trouble::TooNew) => self.is_watchable = false,
            (Step::Stream(_) | Step::List(_), Trouble::Expired | Trouble::TooNew) => {
                self.needs_latest = true;
            }
            (Step::Stream(_), Trouble::NotStreamed) => self.streams = false,
            (Step::Stream(_), Trouble::BrokenOff) => self.has_failed_stream = true,
            (Step::Stream(_), trouble) if trouble.is_invalid_request() => self.streams = false,
            (Step::List(_), trouble) if trouble.is_invalid_request() => self.needs_latest = true,
            (Step::Stream(_), _) => {
                self.has_failed_stream = true;
                return false;
            }
            // Nothing replied to either: the agents of all nodes would list when a server comes
            // back, which costs it more than streams do.
            (Step::List(_), Trouble::Failed(_)) => {
                self.has_failed_stream = false;
                return false;
            }
            _ => {}
        }
        self.next() != step
    }
}

/// Whether this is the version of a state. A watch from 0 or no version would begin anywhere, and
/// what changed before would be lost.
pub fn is_version(version: &str) -> bool {
    !version.is_empty() && version != ANY
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;

    use super::*;

    fn refused(code: u16) -> Trouble {
        Trouble::of_status(Box::new(Status { code, ..Status::default() }))
    }

    fn watch(version: &str) -> Step {
        Step::Watch(version.to_owned())
    }

    fn stream(version: &str) -> Step {
        Step::Stream(version.to_owned())
    }

    fn list(version: &str) -> Step {
        Step::List(version.to_owned())
    }

    #[test]
    fn the_first_list_may_be_of_any_version_and_the_watch_follows_it() {
        let mut position = Position::default();
        assert_eq!(position.next(), stream("0"));
        position.listed("7");
        assert_eq!(position.next(), watch("7"));
        position.moved_to("9");
        assert_eq!(position.next(), watch("9"));
    }

    #[test]
    fn no_list_is_older_than_what_was_reported() {
        let mut position = Position::default();
        position.listed("7");
        position.moved_to("9");
        assert!(position.failed(&watch("9"), &Trouble::Expired));
        assert_eq!(position.next(), stream("9"));
        position.listed("12");
        position.list_again();
        assert_eq!(position.next(), stream("12"));
    }

    #[test]
    fn a_stream_whose_list_is_complete_fails_as_a_watch() {
        for (trouble, next) in [(Trouble::Expired, stream("9")), (refused(400), watch("9"))] {
            let mut position = Position::default();
            let step = position.next();
            position.listed("7");
            position.moved_to("9");
            assert_eq!(position.failed(&step, &trouble), next != watch("9"));
            assert_eq!(position.next(), next);
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_version_is_asked_for_the_latest() {
        for trouble in [Trouble::Expired, Trouble::TooNew] {
            let mut position = Position::default();
            position.listed("9");
            position.failed(&watch("9"), &Trouble::TooNew);
            assert!(position.failed(&stream("9"), &trouble));
            assert_eq!(position.next(), Step::ListLatest);
            // Its pages may expire.
            assert!(!position.failed(&Step::ListLatest, &Trouble::Expired));
            position.listed("3");
            assert_eq!(position.next(), watch("3"));
            position.list_again();
            assert_eq!(position.next(), stream("3"));
        }
    }

    #[test]
    fn a_server_that_does_not_stream_lists() {
        for trouble in [refused(400), refused(422), Trouble::NotStreamed] {
            let mut position = Position::default();
            assert!(position.failed(&stream("0"), &trouble));
            assert_eq!(position.next(), list("0"));
            position.listed("7");
            position.list_again();
            assert_eq!(position.next(), list("7"));
        }
        let mut position = Position::default();
        position.failed(&stream("0"), &refused(422));
        assert!(position.failed(&list("0"), &refused(400)));
        assert_eq!(position.next(), Step::ListLatest);
    }

    #[test]
    fn after_a_stream_that_broke_off_one_list_is_no_stream() {
        let mut position = Position::default();
        assert!(position.failed(&stream("0"), &Trouble::BrokenOff));
        assert_eq!(position.next(), list("0"));
        assert!(!position.failed(&list("0"), &refused(503)));
        position.listed("7");
        assert_eq!(position.next(), watch("7"));
        position.list_again();
        assert_eq!(position.next(), stream("7"));
    }

    /// With an etcd that does not report its progress, streams fail in various ways, and for ever.
    #[test]
    fn after_any_failure_of_a_stream_a_list_is_next() {
        let troubles = [
            Trouble::Expired,
            Trouble::TooNew,
            Trouble::NotStreamed,
            Trouble::BrokenOff,
            Trouble::NoAnswer(Duration::from_secs(60)),
            Trouble::Failed("reset".to_owned()),
            refused(400),
            refused(401),
            refused(403),
            refused(404),
            refused(429),
            refused(500),
            refused(503),
            refused(504),
        ];
        for trouble in troubles {
            let mut position = Position::default();
            position.failed(&stream("0"), &trouble);
            let next = position.next();
            assert!(matches!(next, Step::List(_) | Step::ListLatest), "{trouble:?}: {next:?}");
            position.listed("7");
            assert_eq!(position.next(), watch("7"));
        }
    }

    /// Both fail, as long as no server is there. What would restore it is reported.
    #[test]
    fn a_server_that_comes_back_is_asked_for_a_stream_or_a_list() {
        let mut position = Position::default();
        let lost = Trouble::Failed("connection refused".to_owned());
        for _ in 0..3 {
            assert!(!position.failed(&stream("0"), &lost));
            assert_eq!(position.next(), list("0"));
            assert!(!position.failed(&list("0"), &lost));
            assert_eq!(position.next(), stream("0"));
        }
    }

    #[test]
    fn what_is_no_version_of_a_state_does_not_move_the_watch() {
        let mut position = Position::default();
        position.listed("7");
        for version in ["", "0"] {
            position.moved_to(version);
            assert_eq!(position.next(), watch("7"));
        }
    }

    #[test]
    fn other_failures_change_nothing() {
        let mut position = Position::default();
        position.listed("7");
        for trouble in [refused(401), refused(403), refused(500), refused(429)] {
            assert!(!position.failed(&watch("7"), &trouble));
        }
        assert_eq!(position.next(), watch("7"));
        position.list_again();
        position.listed("7");
        assert!(!position.failed(&watch("7"), &refused(400)));
        assert!(!position.failed(&watch("7"), &Trouble::Failed("reset".to_owned())));
    }
}
