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
    /// `most`: spans in a second.
    pub fn new(most: u32) -> Self {
        let rate = |most: u32| Rate::new(Duration::from_secs(1) / most.max(1), most);
        Self {
            all: RateLimiter::new(rate(most)),
            namespace: rate(most / NAMESPACE_PART),
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
        own.rate.take(now) && self.all.take(now)
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
        let mut rates = SpanRates::new(100);
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
        assert!(SpanRates::new(0).admit(&good, now));
        rates.forget_unused(now + KEPT);
        assert_eq!(rates.by_namespace.len(), 1);
    }
}
