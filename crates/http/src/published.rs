//! When the documents that an issuer of tokens publishes are fetched, and how long they are used: its keys, and where its
//! servers are.
//!
//! Invariants:
//! - One fetch at a time, and at most one in an interval, whatever clients send.
//! - A fetch that fails changes nothing. A document without a successful fetch for [`KEPT`] is not used any more.
//! - What the issuer has withdrawn is not used after a fetch, also if it has withdrawn all keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Uri;

use crate::upstream::UpstreamName;

/// How long keys are used before requests cause them to be fetched again, in the background.
const FRESH: Duration = Duration::from_secs(300);
/// When keys are so old that requests wait for a fetch: after an hour without requests, withdrawn keys must not count.
const STALE: Duration = Duration::from_secs(600);
/// How long keys are used if fetching fails: an issuer cannot be away for longer, and keys that it has withdrawn in
/// the meantime are not used for ever.
const KEPT: Duration = Duration::from_secs(86_400);

/// Where an issuer publishes a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DocumentAddress {
    /// Of the object whose clients need the document, which counts its addresses.
    pub namespace: Arc<str>,
    pub upstream: UpstreamName,
    /// Only has the `Host`, path and query of the request.
    pub url: Uri,
}

/// What issuers publish.
pub trait IssuerDocument: PartialEq {
    /// Whether it says that nothing which was published before is valid any more.
    fn is_withdrawal(&self) -> bool;
}

/// The document at one address, as of its last good response.
#[derive(Debug)]
pub struct Published<T> {
    /// No withdrawal.
    current: Option<(Arc<T>, Instant)>,
    /// Between the beginnings of two fetches.
    interval: Duration,
    /// When the last fetch began.
    tried: Option<Instant>,
    is_fetching: bool,
}

/// Why a document is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyFetch {
    /// There is none, or it may have changed.
    Age,
    /// A token names a key that is not in it.
    UnknownKey,
}

impl<T: IssuerDocument> Published<T> {
    /// `interval`: the least time between the beginnings of two fetches.
    pub fn new(interval: Duration) -> Self {
        Self { current: None, interval, tried: None, is_fetching: false }
    }

    pub fn usable(&self, now: Instant) -> Option<&Arc<T>> {
        let (document, fetched) = self.current.as_ref()?;
        (now.saturating_duration_since(*fetched) < KEPT).then_some(document)
    }

    pub fn is_fetching(&self) -> bool {
        self.is_fetching
    }

    /// Whether a fetch is being made that has to end before the document is used.
    pub fn should_await_fetch(&self, now: Instant) -> bool {
        let is_stale = |at: Instant| now.saturating_duration_since(at) >= STALE;
        self.is_fetching && self.current.as_ref().is_none_or(|(_, at)| is_stale(*at))
    }

    /// Whether [`Self::begin_fetch`] would begin a fetch.
    pub fn is_fetch_due(&self, why: WhyFetch, now: Instant) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let is_fresh = self.current.as_ref().is_some_and(|(_, at)| passed(*at) < FRESH);
        let is_needed = !is_fresh || why == WhyFetch::UnknownKey;
        is_needed && !self.is_fetching && self.tried.is_none_or(|at| passed(at) >= self.interval)
    }

    /// Whether the caller has to fetch the document, and then to call [`Self::end_fetch`].
    pub fn begin_fetch(&mut self, why: WhyFetch, now: Instant) -> bool {
        let is_due = self.is_fetch_due(why, now);
        if is_due {
            self.is_fetching = true;
            self.tried = Some(now);
        }
        is_due
    }

    /// `None`: there was no usable response. A document that has not changed is the same one afterwards, so that no token
    /// is tried with its keys again.
    pub fn end_fetch(&mut self, fetched: Option<T>, now: Instant) {
        self.is_fetching = false;
        let Some(fetched) = fetched else { return };
        let before = self.current.take().map(|(before, _)| before);
        if !fetched.is_withdrawal() {
            let unchanged = before.filter(|before| **before == fetched);
            self.current = Some((unchanged.unwrap_or_else(|| Arc::new(fetched)), now));
        }
    }

    /// Whether nothing is lost without what is known.
    pub fn is_expired(&self, now: Instant) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        !self.is_fetching
            && self.usable(now).is_none()
            && self.tried.is_none_or(|at| passed(at) >= self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of keys.
    #[derive(Debug, PartialEq)]
    struct Keys(&'static str);

    impl IssuerDocument for Keys {
        fn is_withdrawal(&self) -> bool {
            self.0.is_empty()
        }
    }

    fn keys() -> Option<Keys> {
        Some(Keys("a"))
    }

    fn published() -> Published<Keys> {
        Published::new(seconds(10))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_are_fetched_again_when_they_are_old_and_not_before() {
        let start = Instant::now();
        let mut published = published();
        assert!(published.begin_fetch(WhyFetch::Age, start));
        assert!(!published.begin_fetch(WhyFetch::Age, start + seconds(60)), "one at a time");
        published.end_fetch(keys(), start + seconds(60));
        assert!(!published.begin_fetch(WhyFetch::Age, start + seconds(359)));
        assert!(published.begin_fetch(WhyFetch::Age, start + seconds(360)));
    }

    /// Clients can name any key.
    #[test]
    fn unknown_keys_cause_one_fetch_in_ten_seconds() {
        let start = Instant::now();
        let mut published = published();
        published.begin_fetch(WhyFetch::Age, start);
        published.end_fetch(keys(), start);
        let mut fetches = 0;
        for millisecond in 0..60_000 {
            let now = start + Duration::from_millis(millisecond);
            if published.begin_fetch(WhyFetch::UnknownKey, now) {
                fetches += 1;
                published.end_fetch(keys(), now);
            }
        }
        assert_eq!(fetches, 5);
    }

    /// The issuer may have withdrawn the keys while no request needed them.
    #[test]
    fn stale_keys_are_used_only_if_a_fetch_has_failed() {
        let start = Instant::now();
        let mut published = published();
        published.begin_fetch(WhyFetch::Age, start);
        assert!(published.should_await_fetch(start));
        published.end_fetch(keys(), start);
        let soon = start + seconds(300);
        assert!(published.begin_fetch(WhyFetch::Age, soon));
        assert!(!published.should_await_fetch(soon), "in the background");
        published.end_fetch(keys(), soon);
        let later = soon + seconds(3600);
        assert!(!published.should_await_fetch(later), "there is nothing to wait for");
        assert!(published.begin_fetch(WhyFetch::Age, later));
        assert!(published.should_await_fetch(later));
        published.end_fetch(None, later);
        assert!(!published.should_await_fetch(later) && published.usable(later).is_some());
    }

    #[test]
    fn what_an_issuer_has_withdrawn_is_not_used() {
        let start = Instant::now();
        let mut published = published();
        published.begin_fetch(WhyFetch::Age, start);
        published.end_fetch(keys(), start);
        let later = start + seconds(300);
        assert!(published.begin_fetch(WhyFetch::Age, later));
        published.end_fetch(Some(Keys("")), later);
        assert!(published.usable(later).is_none());
        // Asked again as if nothing had been received.
        assert!(!published.is_fetch_due(WhyFetch::Age, later));
        assert!(published.begin_fetch(WhyFetch::Age, later + seconds(10)));
        assert!(published.should_await_fetch(later + seconds(10)));
    }

    #[test]
    fn unchanged_keys_are_the_same_ones() {
        let start = Instant::now();
        let mut published = published();
        published.end_fetch(keys(), start);
        let before = published.usable(start).unwrap().clone();
        let later = start + seconds(86_399);
        published.end_fetch(keys(), later);
        assert!(Arc::ptr_eq(&before, published.usable(later + seconds(60)).unwrap()));
        published.end_fetch(Some(Keys("b")), later);
        assert!(!Arc::ptr_eq(&before, published.usable(later).unwrap()));
    }

    #[test]
    fn the_last_good_keys_stay_for_a_day_and_no_longer() {
        let start = Instant::now();
        let mut published = published();
        published.begin_fetch(WhyFetch::Age, start);
        published.end_fetch(keys(), start);
        for hour in 1..24 {
            let now = start + seconds(3600 * hour);
            assert!(published.begin_fetch(WhyFetch::Age, now));
            published.end_fetch(None, now);
            assert!(published.usable(now).is_some(), "{hour}");
            assert!(!published.is_expired(now));
        }
        let end = start + seconds(86_400);
        assert!(published.usable(end).is_none());
        assert!(published.is_expired(end));
        published.begin_fetch(WhyFetch::Age, end);
        assert!(!published.is_expired(end), "others wait for it");
        published.end_fetch(keys(), end);
        assert!(published.usable(end).is_some());
    }
}
