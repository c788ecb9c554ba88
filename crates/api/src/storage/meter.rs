//! Whether the store can be written, and how fast. Written by the writer, read by metrics and
//! readiness.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::WriteError;

/// Upper limits of the histogram's buckets in seconds.
pub(crate) const FLUSH_SECONDS_BUCKETS: [f64; 8] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];

#[derive(Debug, Default)]
pub(crate) struct StorageMeter(Mutex<StorageFigures>);

#[derive(Debug, Default, Clone)]
pub struct StorageFigures {
    /// Why the last write failed. `None` if it did not.
    pub failure: Option<WriteError>,
    pub failures: u64,
    /// Flushes by duration, one more than there are buckets, not cumulated.
    pub flushes: [u64; FLUSH_SECONDS_BUCKETS.len() + 1],
    pub seconds: f64,
}

impl StorageMeter {
    pub fn figures(&self) -> StorageFigures {
        self.lock().clone()
    }

    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    pub fn failed(&self, failure: WriteError) {
        let mut figures = self.lock();
        figures.failure = Some(failure);
        figures.failures += 1;
    }

    /// `duration` is `None` if nothing was written.
    pub fn flushed(&self, duration: Option<Duration>) {
        let mut figures = self.lock();
        figures.failure = None;
        if let Some(duration) = duration {
            let seconds = duration.as_secs_f64();
            let bucket = FLUSH_SECONDS_BUCKETS.iter().position(|limit| seconds <= *limit);
            figures.flushes[bucket.unwrap_or(FLUSH_SECONDS_BUCKETS.len())] += 1;
            figures.seconds += seconds;
        }
    }

    /// May be poisoned: nothing in it can fail halfway.
    fn lock(&self) -> MutexGuard<'_, StorageFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
