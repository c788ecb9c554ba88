//! What is known about one endpoint.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::settings::BalancerSettings;
use crate::stable_hash::StableHash;

/// Microseconds since the balancer was made.
pub(super) type Ticks = i64;

/// `ready_from` of endpoints that need no slow start. Far from the limits of `Ticks`, so that differences fit.
const ALWAYS: Ticks = Ticks::MIN / 4;

/// The part of its full share that an endpoint gets at the beginning of its slow start, of [`FULL_SHARE`].
const FIRST_SHARE: u64 = FULL_SHARE / 20;
pub(super) const FULL_SHARE: u64 = 1 << 32;

/// Counters are read and written without order between them: each only makes a choice better.
pub(super) struct EndpointState {
    pub address: SocketAddr,
    /// Identity in consistent hashing.
    pub seed: u64,
    in_flight: AtomicU32,
    /// In a row.
    failures: AtomicU32,
    /// Before, the endpoint is ejected; from then on it starts slowly. Written with the balancer's mutex held.
    ready_from: AtomicI64,
    /// Ejections that followed each other soon. Written with the balancer's mutex held.
    ejections: AtomicU32,
}

impl EndpointState {
    pub fn new(address: SocketAddr, ready_from: Option<Ticks>) -> Self {
        Self {
            address,
            seed: seed(address),
            in_flight: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            ready_from: AtomicI64::new(ready_from.unwrap_or(ALWAYS)),
            ejections: AtomicU32::new(0),
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    pub(crate) fn is_ejected(&self, now: Ticks) -> bool {
        now < self.ready_from.load(Relaxed)
    }

    pub(crate) fn ready_from(&self) -> Ticks {
        self.ready_from.load(Relaxed)
    }

    /// Which part of its full share the endpoint gets now, of [`FULL_SHARE`]: 0 while it is ejected.
    pub fn share(&self, now: Ticks, slow_start: Duration) -> u64 {
        let age = now - self.ready_from.load(Relaxed);
        let slow_start = slow_start.as_micros() as Ticks;
        if age < 0 {
            0
        } else if age >= slow_start {
            FULL_SHARE
        } else {
            let share = (age as u128 * u128::from(FULL_SHARE) / slow_start as u128) as u64;
            share.max(FIRST_SHARE)
        }
    }

    pub fn succeed(&self) {
        // Most often nothing changes: do not take the cache line from other processors.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Whether the endpoint should be ejected.
    pub fn fail(&self, most: u32) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        most != 0 && failures >= most
    }

    pub(crate) fn eject(&self, settings: &BalancerSettings, now: Ticks) {
        let longest = settings.longest_ejection.as_micros() as Ticks;
        let is_soon = now - self.ready_from.load(Relaxed) < longest;
        let ejections = if is_soon { self.ejections.load(Relaxed) } else { 0 };
        let doubled =
            (settings.ejection.as_micros() as Ticks).saturating_mul(1 << ejections.min(20));
        self.ejections.store(ejections.saturating_add(1), Relaxed);
        self.ready_from.store(now + doubled.min(longest), Relaxed);
        // When it is tried again, one more failure ejects it.
        self.failures.store(settings.failures.saturating_sub(1), Relaxed);
    }

    pub(crate) fn end_ejection(&self, now: Ticks) {
        self.ready_from.store(now, Relaxed);
    }
}

fn seed(address: SocketAddr) -> u64 {
    let mut hash = StableHash::new();
    match address {
        SocketAddr::V4(address) => hash.write(&address.ip().octets()),
        SocketAddr::V6(address) => hash.write(&address.ip().octets()),
    }
    hash.write(&address.port().to_be_bytes());
    hash.finish()
}

/// A request in flight to an endpoint.
#[must_use = "the request counts as in flight until the guard is dropped"]
pub struct Guard(Arc<EndpointState>);

impl Guard {
    pub(super) fn new(endpoint: Arc<EndpointState>) -> Self {
        endpoint.in_flight.fetch_add(1, Relaxed);
        Self(endpoint)
    }

    pub(super) fn endpoint(&self) -> &Arc<EndpointState> {
        &self.0
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
