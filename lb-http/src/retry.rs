//! Which requests may be sent to another endpoint after the first one failed.
//!
//! Invariant: an endpoint never processes a request twice, unless the method says that this is harmless (RFC 9110,
//! section 9.2.2) or the policy does.

use std::time::Duration;

use http::{Method, StatusCode};

use crate::policy::Retry;

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The endpoint cannot have processed the request: there was no connection, nothing was written, or HTTP/2 said
    /// so (REFUSED_STREAM, or a GOAWAY with a lower stream).
    NotProcessed,
    /// The connection ended, or time was over, before the head of a response.
    NoResponse,
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
        Failure::NoResponse => is_harmless,
        Failure::Status(status) => is_harmless && policy.statuses.contains(&status.as_u16()),
    };
    is_retried
        && !progress.response_started
        && progress.replayable
        && progress.tries < policy.tries
        && policy.timeout.is_none_or(|timeout| progress.elapsed < timeout)
}
