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
mod settings;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;

pub use endpoint::Guard;
use endpoint::{EndpointState, Ticks};
pub use pick::{Affinity, Pick};
use set::EndpointSet;
pub use settings::{BalancerSettings, RequestOutcome, Status};

use crate::affinity::Token;
use crate::retry::{Failure, RetryBudget, Retrying};
use crate::upstream::Upstream;

/// The endpoints of an upstream, and what is known about them.
///
/// Readers take a reference to the set without a lock and without writing to memory that they share (arc-swap), as
/// each request reads it and it changes rarely. The mutex is only for those that change the set or eject.
pub struct Balancer {
    settings: Arc<BalancerSettings>,
    epoch: Instant,
    set: ArcSwap<EndpointSet>,
    changes: Mutex<()>,
    retries: RetryBudget,
}

impl Balancer {
    pub fn new(settings: Arc<BalancerSettings>, upstream: &Upstream, now: Instant) -> Self {
        let set = EndpointSet::default().replace(upstream, settings.affinity_keys.load(), 0);
        let (changes, retries) = (Mutex::default(), RetryBudget::default());
        Self { settings, epoch: now, set: ArcSwap::from_pointee(set), changes, retries }
    }

    /// Replaces the endpoints. What is known about those that stay is kept.
    pub fn update(&self, upstream: &Upstream, now: Instant) {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.ticks(now);
        let set = self.set.load().replace(upstream, self.settings.affinity_keys.load(), now);
        set.bound_ejections(now);
        self.set.store(Arc::new(set));
    }

    /// Chooses an endpoint and counts a request in flight to it until the guard is dropped. `None`: there are no
    /// endpoints, or all were tried.
    pub fn choose(&self, pick: &Pick<'_>) -> Option<Guard> {
        let mut set = self.set.load();
        if pick.affinity.is_some() && !self.settings.affinity_keys.are(&set.keys) {
            self.follow_keys();
            set = self.set.load();
        }
        let now = self.ticks(pick.now);
        pick.find(&set, now, self.settings.slow_start)
            .map(|endpoint| Guard::new(Arc::clone(endpoint)))
    }

    fn follow_keys(&self) {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.set.load().named_by(self.settings.affinity_keys.load());
        self.set.store(Arc::new(set));
    }

    /// Names the endpoint in affinity cookies.
    pub fn token(&self, guard: &Guard) -> Token {
        self.settings.affinity_keys.token(guard.address())
    }

    /// Reports how a request went, as soon as that is known; the guard may live longer. Requests that the client
    /// cancels say nothing, and neither does a connection that was closed before the request was written to it.
    /// Returns whether the endpoint was ejected for it.
    pub fn report(&self, guard: &Guard, outcome: RequestOutcome, now: Instant) -> bool {
        let endpoint = guard.endpoint();
        match outcome {
            RequestOutcome::Success => {
                endpoint.succeed();
                false
            }
            RequestOutcome::Failure => {
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
