//! Which requests may be sent to another endpoint after the first one failed.
//!
//! Invariant: an endpoint never processes a request twice, unless the method says that this is harmless (RFC 9110,
//! section 9.2.2) or the policy does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use http::{Method, StatusCode};

use crate::policy::Retry;

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The endpoint cannot have processed the request: there was no connection, nothing was written, or HTTP/2 said
    /// so (REFUSED_STREAM, or a GOAWAY with a lower stream).
    NotProcessed,
    /// The connection ended, or its octets were no response, before the head of one.
    NoResponse,
    /// Time was over before the head of a response.
    Timeout,
    /// The head of this response arrived.
    Status(StatusCode),
}

/// What happened to a request until now.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Endpoints that were tried, with the one that failed.
    pub tries: u32,
    /// Since the request's first try began.
    pub elapsed: Duration,
    /// Whether any octet of a final response was sent to the client, or the protocol was upgraded.
    pub response_started: bool,
    /// Whether the whole request can be sent again: it has no body, or all that was read of it is still there.
    pub replayable: bool,
}

/// Whether the request may be sent again.
pub fn may_retry(policy: &Retry, method: &Method, failure: Failure, progress: &Progress) -> bool {
    let is_harmless = method.is_idempotent() || policy.non_idempotent;
    let is_retried = match failure {
        Failure::NotProcessed => true,
        Failure::NoResponse => is_harmless && policy.on_error,
        Failure::Timeout => is_harmless && policy.on_timeout,
        Failure::Status(status) => is_harmless && policy.statuses.contains(&status.as_u16()),
    };
    is_retried
        && !progress.response_started
        && progress.replayable
        && progress.tries < policy.tries
        && policy.timeout.is_none_or(|timeout| progress.elapsed < timeout)
}

/// Retries at the same time that an upstream always allows.
const FREE_RETRIES: u32 = 3;
/// Beyond, the part of the requests in flight that may be retries: a fifth.
const REQUESTS_PER_RETRY: u32 = 5;

/// Bounds the retries of one upstream, so that endpoints which fail under load do not get several times that load.
#[derive(Clone, Default)]
pub(crate) struct RetryBudget(Arc<AtomicU32>);

impl RetryBudget {
    /// Counts a retry until the permit is dropped. `None`: there are too many already. A request that was not processed
    /// costs endpoints nothing, and is always sent to another.
    pub fn begin(&self, failure: Failure, pending: u32) -> Option<Retrying> {
        if failure == Failure::NotProcessed {
            return Some(Retrying(None));
        }
        let most = FREE_RETRIES.max(pending / REQUESTS_PER_RETRY);
        self.0
            .fetch_update(Relaxed, Relaxed, |retries| (retries < most).then_some(retries + 1))
            .ok()?;
        Some(Retrying(Some(Arc::clone(&self.0))))
    }
}

/// A retry in flight.
#[must_use = "the retry counts until this is dropped"]
pub struct Retrying(Option<Arc<AtomicU32>>);

impl Drop for Retrying {
    fn drop(&mut self) {
        if let Some(retries) = &self.0 {
            retries.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Progress =
        Progress { tries: 1, elapsed: Duration::ZERO, response_started: false, replayable: true };

    fn policy() -> Retry {
        Retry { tries: 3, statuses: [502, 503].into(), ..Retry::default() }
    }

    fn status(code: u16) -> Failure {
        Failure::Status(StatusCode::from_u16(code).unwrap())
    }

    #[test]
    fn methods_decide_about_requests_that_may_have_been_processed() {
        let cases = [
            ("GET", Failure::NotProcessed, true),
            ("POST", Failure::NotProcessed, true),
            ("GET", Failure::NoResponse, true),
            ("HEAD", Failure::NoResponse, true),
            ("PUT", Failure::NoResponse, true),
            ("DELETE", Failure::NoResponse, true),
            ("OPTIONS", Failure::NoResponse, true),
            ("POST", Failure::NoResponse, false),
            ("PATCH", Failure::NoResponse, false),
            ("CONNECT", Failure::NoResponse, false),
            ("LOCK", Failure::NoResponse, false),
            ("get", Failure::NoResponse, false),
            ("GET", Failure::Timeout, true),
            ("POST", Failure::Timeout, false),
            ("GET", status(503), true),
            ("GET", status(504), false),
            ("POST", status(503), false),
        ];
        for (method, failure, expected) in cases {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(
                may_retry(&policy(), &method, failure, &FIRST),
                expected,
                "{method} {failure:?}"
            );
        }
        let all = Retry { non_idempotent: true, ..policy() };
        assert!(may_retry(&all, &Method::POST, Failure::NoResponse, &FIRST));
        assert!(may_retry(&all, &Method::POST, status(502), &FIRST));
    }

    #[test]
    fn a_failure_that_the_policy_does_not_name_is_not_retried() {
        let no_timeout = Retry { on_timeout: false, ..policy() };
        let no_error = Retry { on_error: false, ..policy() };
        for (policy, failure, expected) in [
            (&no_timeout, Failure::Timeout, false),
            (&no_timeout, Failure::NoResponse, true),
            (&no_timeout, status(503), true),
            (&no_error, Failure::NoResponse, false),
            (&no_error, Failure::Timeout, true),
            (&no_error, Failure::NotProcessed, true),
        ] {
            assert_eq!(may_retry(policy, &Method::PUT, failure, &FIRST), expected, "{failure:?}");
        }
    }

    #[test]
    fn tries_and_time_are_limited() {
        let may = |policy: &Retry, progress| {
            may_retry(policy, &Method::GET, Failure::NotProcessed, &progress)
        };
        assert!(may(&policy(), Progress { tries: 2, ..FIRST }));
        assert!(!may(&policy(), Progress { tries: 3, ..FIRST }));
        assert!(!may(&Retry { tries: 1, ..policy() }, FIRST));
        assert!(!may(&Retry { tries: 0, ..policy() }, FIRST));

        let timed = Retry { timeout: Some(Duration::from_secs(5)), ..policy() };
        assert!(may(&timed, Progress { elapsed: Duration::from_millis(4_999), ..FIRST }));
        assert!(!may(&timed, Progress { elapsed: Duration::from_secs(5), ..FIRST }));
    }

    #[test]
    fn retries_that_cost_endpoints_something_are_a_part_of_all_requests() {
        let budget = RetryBudget::default();
        let begin = |pending| budget.begin(Failure::NoResponse, pending);
        let few: Vec<_> = (0..5).map(|_| begin(1)).collect();
        assert_eq!(few.iter().flatten().count(), 3);
        let many: Vec<_> = (0..50).map(|_| begin(100)).collect();
        assert_eq!(many.iter().flatten().count(), 17);
        assert!(budget.begin(Failure::NotProcessed, 0).is_some());
        drop((few, many));
        assert_eq!((0..50).map(|_| begin(100)).collect::<Vec<_>>().iter().flatten().count(), 20);
    }

    proptest! {
        #[test]
        fn nothing_is_sent_twice_that_must_not_be(
            method in prop::sample::select(vec![Method::GET, Method::POST, Method::PUT, Method::PATCH]),
            code in 100..600u16,
            kind in 0..4u8,
            tries in 0..5u32,
            response_started in any::<bool>(),
            replayable in any::<bool>(),
            non_idempotent in any::<bool>(),
        ) {
            let failure = [Failure::NotProcessed, Failure::NoResponse, Failure::Timeout, status(code)][usize::from(kind)];
            let policy = Retry { non_idempotent, ..policy() };
            let progress = Progress { tries, response_started, replayable, ..FIRST };
            if may_retry(&policy, &method, failure, &progress) {
                prop_assert!(!response_started && replayable && tries < 3);
                prop_assert!(failure == Failure::NotProcessed || method.is_idempotent() || non_idempotent);
            }
        }
    }
}
