//! Counters of one owner's requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::{Kinds, MirrorResult, UpstreamError, increase_counter};

/// Upper bounds of the histogram, in microseconds. The last bucket has none.
pub(super) const BUCKETS: [u64; 12] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    30_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct OwnerCounters {
    /// By the status code's first digit: 1xx to 5xx.
    pub(super) codes: [AtomicU64; 5],
    pub(super) buckets: [AtomicU64; BUCKETS.len() + 1],
    pub(super) microseconds: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) ejections: AtomicU64,
    pub(super) errors: Kinds<UpstreamError>,
    pub(super) mirrored: Kinds<MirrorResult>,
}

impl OwnerCounters {
    pub fn finished(&self, status: StatusCode, duration: Duration, received: u64, sent: u64) {
        let class = usize::from(status.as_u16() / 100).clamp(1, self.codes.len());
        increase_counter(&self.codes[class - 1], 1);
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.iter().position(|bound| microseconds <= *bound);
        increase_counter(&self.buckets[bucket.unwrap_or(BUCKETS.len())], 1);
        increase_counter(&self.microseconds, microseconds);
        increase_counter(&self.received, received);
        increase_counter(&self.sent, sent);
    }

    pub fn retried(&self) {
        increase_counter(&self.retries, 1);
    }

    pub fn ejected(&self) {
        increase_counter(&self.ejections, 1);
    }

    pub fn mirrored(&self, result: MirrorResult) {
        self.mirrored.count(result);
    }

    pub fn failed(&self, error: UpstreamError) {
        self.errors.count(error);
    }

    /// Adds what another worker counted for the same owner.
    pub(super) fn add(&self, other: &Self) {
        let pairs = self.codes.iter().zip(&other.codes);
        let pairs = pairs.chain(self.buckets.iter().zip(&other.buckets));
        let pairs = pairs.chain(self.errors.counts.iter().zip(&other.errors.counts));
        let pairs = pairs.chain(self.mirrored.counts.iter().zip(&other.mirrored.counts));
        let pairs = pairs.chain([
            (&self.microseconds, &other.microseconds),
            (&self.received, &other.received),
            (&self.sent, &other.sent),
            (&self.retries, &other.retries),
            (&self.ejections, &other.ejections),
        ]);
        for (sum, counter) in pairs {
            increase_counter(sum, counter.load(Ordering::Relaxed));
        }
    }
}
