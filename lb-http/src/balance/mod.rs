//! Which endpoint of an upstream gets a request. One [`Balancer`] per upstream, shared by the proxy's threads.
//!
//! Invariants:
//! - At least half of the endpoints are not ejected, so while there are endpoints, a first try finds one.
//! - A request is not sent to the same endpoint twice.
//! - By the same hash key, all replicas that have the same endpoints choose the same one, except for endpoints that
//!   they ejected.
//! - An endpoint that stays keeps its requests in flight, failures and age across updates.

mod endpoint;
mod pick;
mod set;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

pub use endpoint::Guard;
use endpoint::{EndpointState, Ticks};
pub use pick::{Affinity, Pick};
use set::Set;

use crate::affinity::Key;
use crate::retry::{Budget, Failure, Retrying};
use crate::upstream::Upstream;

/// The same for all upstreams of a proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time until an endpoint that joins others gets as many requests as they do; zero: at once.
    pub slow_start: Duration,
    /// Failures in a row after which an endpoint is ejected; 0: never.
    pub failures: u32,
    /// How long an endpoint is ejected for the first time. It doubles with each ejection that follows soon.
    pub ejection: Duration,
    pub longest_ejection: Duration,
    /// Names endpoints in cookies.
    pub affinity_key: Key,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slow_start: Duration::from_secs(10),
            failures: 5,
            ejection: Duration::from_secs(10),
            longest_ejection: Duration::from_secs(300),
            affinity_key: Key::default(),
        }
    }
}

/// What a request says about its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The head of a response arrived, whatever its status, except those that [`Outcome::of_status`] names.
    Success,
    /// No connection, no response in time, or one that says that the endpoint cannot serve.
    Failure,
}

impl Outcome {
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

/// The endpoints of an upstream, and what is known about them.
///
/// Readers take a reference to the set without a lock and without writing to memory that they share (arc-swap), as
/// each request reads it and it changes rarely. The mutex is only for those that change the set or eject.
pub struct Balancer {
    settings: Arc<Settings>,
    epoch: Instant,
    set: ArcSwap<Set>,
    changes: Mutex<()>,
    retries: Budget,
}

impl Balancer {
    pub fn new(settings: Arc<Settings>, upstream: &Upstream, now: Instant) -> Self {
        let set = Set::default().replace(upstream, &settings, 0);
        let (changes, retries) = (Mutex::default(), Budget::default());
        Self { settings, epoch: now, set: ArcSwap::from_pointee(set), changes, retries }
    }

    /// Replaces the endpoints. What is known about those that stay is kept.
    pub fn update(&self, upstream: &Upstream, now: Instant) {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.ticks(now);
        let set = self.set.load().replace(upstream, &self.settings, now);
        set.bound_ejections(now);
        self.set.store(Arc::new(set));
    }

    /// Chooses an endpoint and counts a request in flight to it until the guard is dropped. `None`: there are no
    /// endpoints, or all were tried.
    pub fn choose(&self, pick: &Pick<'_>) -> Option<Guard> {
        let set = self.set.load();
        let now = self.ticks(pick.now);
        pick.find(&set, now, self.settings.slow_start)
            .map(|endpoint| Guard::new(Arc::clone(endpoint)))
    }

    /// Reports how a request went, as soon as that is known; the guard may live longer. Requests that the client
    /// cancels say nothing, and neither does a connection that was closed before the request was written to it.
    /// Returns whether the endpoint was ejected for it.
    pub fn report(&self, guard: &Guard, outcome: Outcome, now: Instant) -> bool {
        let endpoint = guard.endpoint();
        match outcome {
            Outcome::Success => {
                endpoint.succeed();
                false
            }
            Outcome::Failure => {
                endpoint.fail(self.settings.failures) && self.eject(endpoint, self.ticks(now))
            }
        }
    }

    /// Unless half of the endpoints are ejected already.
    fn eject(&self, endpoint: &Arc<EndpointState>, now: Ticks) -> bool {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let may_eject = self.set.load().may_eject(endpoint, now);
        if may_eject {
            endpoint.eject(&self.settings, now);
        }
        may_eject
    }

    /// Has to permit each retry, in addition to [`crate::retry::may_retry`].
    pub fn begin_retry(&self, failure: Failure) -> Option<Retrying> {
        self.retries.begin(failure, self.pending())
    }

    /// Requests in flight to all endpoints for new requests.
    pub fn pending(&self) -> u32 {
        self.set.load().endpoints.iter().map(|endpoint| endpoint.in_flight()).sum()
    }

    pub fn statuses(&self, now: Instant) -> Vec<Status> {
        self.set.load().statuses(self.ticks(now))
    }

    fn ticks(&self, now: Instant) -> Ticks {
        now.saturating_duration_since(self.epoch).as_micros() as Ticks
    }
}
