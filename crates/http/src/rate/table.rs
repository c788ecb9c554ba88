//! Clients in a set-associative table: a hash selects eight entries, one of which is the client's or becomes it.
//!
//! The entry with the emptiest buckets gives way to a new client. If these are empty, nothing is lost. Under a flood of
//! addresses the clients that sent least are forgotten, those near their limits stay. An entry with requests at the
//! same time never gives way; a client that finds only such entries is not limited.

use std::ops::{Add, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lb_limits::Rate;

use super::RetryAfter;

const WAYS: usize = 8;

/// Nanoseconds since the limiter was made: half the size of a `Duration`. 0: the bucket is empty since then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanos(u64);

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(Self::from(time).0))
    }
}

impl Sub for Nanos {
    type Output = Duration;

    fn sub(self, other: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(other.0))
    }
}

/// `Retry-After` for a client that has too many requests at the same time: it is not known when these end.
const SOME_END_SOON: RetryAfter = RetryAfter(Duration::from_secs(1));

/// The limits of one request.
pub(super) struct Demand {
    pub per_second: Option<Rate>,
    pub per_minute: Option<Rate>,
    pub concurrent: Option<u32>,
}

impl Demand {
    pub fn is_empty(&self) -> bool {
        self.per_second.is_none() && self.per_minute.is_none() && self.concurrent.is_none()
    }
}

#[derive(Clone, Copy, Default)]
struct RateEntry {
    /// Client and object. An unused entry has empty buckets, so it does not matter whose it is.
    tag: u64,
    second: Nanos,
    minute: Nanos,
    concurrent: u32,
}

/// What `capacity` costs.
const _: () = assert!(size_of::<RateEntry>() == 32);

impl RateEntry {
    /// When the entry holds nothing about its client any more.
    fn empty_at(&self) -> Nanos {
        self.second.max(self.minute)
    }
}

pub(super) struct RateTable {
    sets: Box<[Mutex<[RateEntry; WAYS]>]>,
}

impl RateTable {
    pub fn new(capacity: usize) -> Self {
        let sets = capacity.div_ceil(WAYS).max(1).next_power_of_two();
        Self { sets: (0..sets).map(|_| Mutex::default()).collect() }
    }

    /// `None`: the request holds no entry.
    pub fn admit(
        table: &Arc<Self>,
        tag: u64,
        demand: &Demand,
        now: Nanos,
    ) -> Result<Option<RequestInProgress>, RetryAfter> {
        let mut set = table.set(tag);
        let Some(entry) = find(&mut set, tag) else {
            return Ok(None);
        };
        if demand.concurrent.is_some_and(|most| entry.concurrent >= most) {
            return Err(SOME_END_SOON);
        }
        let admit = |rate: Option<Rate>, empty_at| {
            rate.map_or(Ok(empty_at), |rate| rate.admit(empty_at, now))
        };
        let second = admit(demand.per_second, entry.second).map_err(RetryAfter)?;
        let minute = admit(demand.per_minute, entry.minute).map_err(RetryAfter)?;
        let concurrent = entry.concurrent.saturating_add(u32::from(demand.concurrent.is_some()));
        *entry = RateEntry { tag, second, minute, concurrent };
        Ok(demand.concurrent.map(|_| RequestInProgress { table: Arc::clone(table), tag }))
    }

    /// The lowest bits select it.
    fn set(&self, tag: u64) -> MutexGuard<'_, [RateEntry; WAYS]> {
        let position = tag as usize & (self.sets.len() - 1);
        self.sets[position].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client's entry, or one that gives way and is empty then. `None`: all have requests at the same time.
fn find(set: &mut [RateEntry; WAYS], tag: u64) -> Option<&mut RateEntry> {
    if let Some(position) = set.iter().position(|entry| entry.tag == tag) {
        return Some(&mut set[position]);
    }
    let entry = set
        .iter_mut()
        .filter(|entry| entry.concurrent == 0)
        .min_by_key(|entry| entry.empty_at())?;
    *entry = RateEntry { tag, ..RateEntry::default() };
    Some(entry)
}

/// A request that counts as one at the same time as others.
pub(super) struct RequestInProgress {
    table: Arc<RateTable>,
    tag: u64,
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut set = self.table.set(self.tag);
        // It is there: an entry with requests never gives way.
        if let Some(entry) = set.iter_mut().find(|entry| entry.tag == self.tag) {
            entry.concurrent = entry.concurrent.saturating_sub(1);
        }
    }
}
