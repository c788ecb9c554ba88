//! Limits per client and object: requests per second and minute, with bursts, and requests at the same time.
//!
//! Invariants:
//! - Memory is fixed.
//! - No client is refused because of what others do: a full table forgets the client whose bucket empties first, so a
//!   limit fails open, and offenders stay known.
//! - A client with many IPv6 addresses counts once per /64.

mod table;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_limits::{ClientNetwork, Rate};
use table::{Demand, Nanos, RateTable, RequestInProgress};

use crate::policy::RateLimits;
use crate::route::RouteOwner;

/// For 32 octets each.
pub const DEFAULT_CAPACITY: usize = 1 << 16;

/// The clients of all objects. Clones share them.
#[derive(Clone)]
pub struct Limiter<S = RandomState> {
    epoch: Instant,
    /// Keyed with random numbers, so that no one can choose addresses that take another client's place.
    hasher: S,
    table: Arc<RateTable>,
}

impl<S: BuildHasher> Limiter<S> {
    /// `capacity`: clients that are known at the same time, times the objects whose limits they are near.
    pub fn new(capacity: usize, hasher: S, now: Instant) -> Self {
        Self { epoch: now, hasher, table: Arc::new(RateTable::new(capacity)) }
    }

    /// Counts a request. It counts as one at the same time as others until the permit is dropped. Refused requests do
    /// not count.
    pub fn admit(
        &self,
        client: IpAddr,
        owner: &RouteOwner,
        limits: &RateLimits,
        now: Instant,
    ) -> Result<Permit, RetryAfter> {
        let client = client.to_canonical();
        let demand = Demand {
            per_second: limits
                .requests_per_second
                .map(|count| rate(count, Duration::from_secs(1), limits.burst_multiplier)),
            per_minute: limits
                .requests_per_minute
                .map(|count| rate(count, Duration::from_secs(60), limits.burst_multiplier)),
            concurrent: limits.concurrent,
        };
        if demand.is_empty() || limits.exempt.iter().any(|net| net.contains(&client)) {
            return Ok(Permit(None));
        }
        let tag = self.hasher.hash_one((ClientNetwork::from(client), owner));
        let now = Nanos::from(now.saturating_duration_since(self.epoch));
        RateTable::admit(&self.table, tag, &demand, now).map(Permit)
    }
}

/// `count` requests in each `period`, and `count * burst_multiplier` more at once, as with nginx's `limit_req` with
/// `nodelay`. A count of 0 counts as 1.
fn rate(count: u32, period: Duration, burst_multiplier: u32) -> Rate {
    let count = count.max(1);
    // Rounded up, so that rounding never admits more.
    let interval = Duration::from_nanos((period.as_nanos() as u64).div_ceil(count.into()));
    Rate::new(interval, count.saturating_mul(burst_multiplier).saturating_add(1))
}

/// A request that was admitted, until it ends.
#[must_use = "the request counts until the permit is dropped"]
pub struct Permit(#[expect(dead_code, reason = "it is dropped")] Option<RequestInProgress>);

/// When the client may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter(pub Duration);

impl RetryAfter {
    /// For the header `Retry-After`.
    pub fn seconds(self) -> u64 {
        self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)
    }
}
