//! The settings of balancing, and what requests and endpoints are reported as.

use std::net::SocketAddr;
use std::time::Duration;

use crate::affinity::Keys;

/// How requests are balanced, for all upstreams of a proxy.
#[derive(Clone, Debug)]
pub struct BalancerSettings {
    /// Time until an endpoint that joins others gets as many requests as they do; zero: at once.
    pub slow_start: Duration,
    /// Failures in a row after which an endpoint is ejected; 0: never.
    pub failures: u32,
    /// How long an endpoint is ejected for the first time. It doubles with each ejection that follows soon.
    pub ejection: Duration,
    pub longest_ejection: Duration,
    /// Names endpoints in cookies.
    pub affinity_keys: Keys,
}

impl Default for BalancerSettings {
    fn default() -> Self {
        Self {
            slow_start: Duration::from_secs(10),
            failures: 5,
            ejection: Duration::from_secs(10),
            longest_ejection: Duration::from_secs(300),
            affinity_keys: Keys::default(),
        }
    }
}

/// What a request says about its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The head of a response arrived, whatever its status, except those that [`RequestOutcome::of_status`] names.
    Success,
    /// No connection, no response in time, or one that says that the endpoint cannot serve.
    Failure,
}

impl RequestOutcome {
    /// 502, 503 and 504 say that an endpoint or what it depends on is unavailable. Other statuses, even 500, are
    /// often the request's fault: clients must not be able to have endpoints ejected at will.
    pub fn of_status(status: http::StatusCode) -> Self {
        match status.as_u16() {
            502..=504 => Self::Failure,
            _ => Self::Success,
        }
    }
}

/// For metrics and explanations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub address: SocketAddr,
    pub in_flight: u32,
    pub is_draining: bool,
    /// Remaining time.
    pub ejected_for: Option<Duration>,
}
