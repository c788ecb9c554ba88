//! How many spans are recorded in a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_limits::{Rate, RateLimiter};

/// The part of all spans that the requests of one namespace may take.
const NAMESPACE_PART: u32 = 4;

/// The spans of one namespace.
#[derive(Debug)]
struct NamespaceSpans {
    rate: RateLimiter<Instant>,
    used: Instant,
}

/// A rate that was not used for longer is as if it had never been.
const KEPT: Duration = Duration::from_secs(60);

/// Counts spans. Clients can have each of their requests recorded, and a namespace may have many requests: neither leaves
/// others without.
#[derive(Debug)]
pub struct SpanRates {
    all: RateLimiter<Instant>,
    namespace: Rate,
    by_namespace: HashMap<Arc<str>, NamespaceSpans>,
}

impl SpanRates {
    /// `most`: spans in a second, of all `workers` together. Each gets an equal share.
    pub fn new(most: u32, workers: u32) -> Self {
        let (most, workers) = (most.max(1), workers.max(1));
        let interval = Duration::from_secs(workers.into()) / most;
        let at_once = most / workers;
        Self {
            all: RateLimiter::new(Rate::new(interval, at_once)),
            namespace: Rate::new(interval * NAMESPACE_PART, at_once / NAMESPACE_PART),
            by_namespace: HashMap::new(),
        }
    }

    /// Counts a span of a request of the namespace; false if there are too many.
    pub fn admit(&mut self, namespace: &Arc<str>, now: Instant) -> bool {
        let own = match self.by_namespace.get_mut(namespace) {
            Some(own) => own,
            None => {
                let new = NamespaceSpans { rate: RateLimiter::new(self.namespace), used: now };
                self.by_namespace.entry(namespace.clone()).or_insert(new)
            }
        };
        own.used = now;
        // A span that is refused for one reason does not count for the other.
        own.rate.due(now) <= now && self.all.take(now) && own.rate.take(now)
    }

    /// Forgets namespaces that have had no span lately.
    pub fn forget_unused(&mut self, now: Instant) {
        self.by_namespace.retain(|_, own| now.saturating_duration_since(own.used) < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_leaves_spans_for_others() {
        let mut rates = SpanRates::new(100, 1);
        let (evil, good) = (Arc::from("evil"), Arc::from("good"));
        let now = Instant::now();
        let count = |rates: &mut SpanRates, namespace: &Arc<str>, now| {
            (0..1000).filter(|_| rates.admit(namespace, now)).count()
        };
        assert_eq!(count(&mut rates, &evil, now), 25);
        assert_eq!(count(&mut rates, &good, now), 25);
        for name in ["a", "b", "c"] {
            count(&mut rates, &Arc::from(name), now);
        }
        assert_eq!(count(&mut rates, &Arc::from("d"), now), 0, "of all");
        let later = now + Duration::from_secs(1);
        assert_eq!(count(&mut rates, &evil, later), 25);
        rates.forget_unused(now + KEPT);
        assert_eq!(rates.by_namespace.len(), 1);
    }

    #[test]
    fn many_workers_record_no_more_than_few() {
        for (most, workers, expected) in [(100, 1, 1000), (100, 10, 1000), (10, 64, 100)] {
            let (mut count, start) = (0, Instant::now());
            let namespaces = ["a", "b", "c", "d"].map(Arc::from);
            for _ in 0..workers {
                let mut rates = SpanRates::new(most, workers);
                for tick in 0..1_000 {
                    let now = start + 10 * Duration::from_millis(tick);
                    count += namespaces.iter().filter(|name| rates.admit(name, now)).count();
                }
            }
            // And what each may record at once.
            let at_once = most.max(workers) as usize;
            assert!((expected..=expected + 4 * at_once).contains(&count), "{count} of {workers}");
        }
    }
}
