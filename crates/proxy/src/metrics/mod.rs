//! Metrics. Each worker counts for itself, so counting touches no memory that another worker writes; a scrape adds the
//! workers up. Series are bounded: owners beyond a limit share one.

mod encode;
mod owner;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lb_http::RouteOwner;
use prometheus_client::registry::Registry;

pub(crate) use owner::OwnerCounters;

/// A handle on the metrics of a proxy. Clones are of the same metrics.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<MetricsRegistry>);

#[derive(Debug)]
struct MetricsRegistry {
    workers: Mutex<Vec<Arc<WorkerCounters>>>,
    most_owners: usize,
}

/// What one worker counts.
#[derive(Debug)]
pub(crate) struct WorkerCounters {
    pub connections: Kinds<Listener>,
    pub open: [AtomicI64; Listener::ALL.len()],
    pub refused: Kinds<Refusal>,
    pub cut_off: Kinds<CutOff>,
    /// Octets of responses that wait for clients of HTTP/2.
    pub buffered: AtomicU64,
    pub handshakes: Kinds<Handshake>,
    pub log_entries_dropped: AtomicU64,
    pub spans_dropped: Kinds<DroppedSpan>,
    owners: Mutex<HashMap<RouteOwner, Arc<OwnerCounters>>>,
    /// Requests without a route, and those of owners beyond the limit.
    none: Arc<OwnerCounters>,
    other: Arc<OwnerCounters>,
    most_owners: usize,
}

/// The value of a label.
pub(crate) trait LabelValue: Copy + 'static {
    const ALL: &'static [(Self, &'static str)];

    fn index(self) -> usize;
}

macro_rules! kinds {
    ($(#[$comment:meta])* $name:ident { $($kind:ident = $label:literal,)* }) => {
        $(#[$comment])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($kind,)*
        }

        impl LabelValue for $name {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$kind, $label)),*];

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

kinds! {
    Listener { Http = "http", Https = "https", }
}

kinds! {
    /// Why a connection was closed before its first request.
    Refusal {
        Total = "connections",
        Source = "connections_per_source",
        ProxyProtocol = "proxy_protocol",
        NoRequest = "no_request",
        Denied = "denied_source",
        RateLimit = "rate_limit",
    }
}

kinds! {
    /// Which limit ended a connection or a request.
    CutOff {
        SlowHead = "slow_head",
        SlowBody = "slow_body",
        SlowReader = "slow_reader",
        Resets = "resets",
        RequestsPerSource = "requests_per_source",
        Malformed = "malformed",
    }
}

kinds! {
    Handshake {
        Full = "full",
        Resumed = "resumed",
        Passthrough = "passthrough",
        UnknownName = "unknown_name",
        Timeout = "timeout",
        Failed = "failed",
    }
}

kinds! {
    /// Why a request that was to be recorded was not.
    DroppedSpan { Rate = "rate", Queue = "queue", }
}

kinds! {
    /// What became of the copy of a request.
    MirrorResult {
        Sent = "sent",
        Failed = "failed",
        Limit = "limit",
        Body = "body",
    }
}

kinds! {
    /// What went wrong with an endpoint.
    UpstreamError {
        NoEndpoint = "no_endpoint",
        Connect = "connect",
        Tls = "tls",
        Timeout = "timeout",
        Closed = "closed",
        Protocol = "protocol",
    }
}

/// One counter for each kind.
#[derive(Debug)]
pub(crate) struct Kinds<K> {
    counts: Box<[AtomicU64]>,
    kind: std::marker::PhantomData<fn(K)>,
}

impl<K: LabelValue> Default for Kinds<K> {
    fn default() -> Self {
        let counts = K::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self { counts, kind: std::marker::PhantomData }
    }
}

impl<K: LabelValue> Kinds<K> {
    pub fn count(&self, kind: K) {
        self.count_many(kind, 1);
    }

    pub fn count_many(&self, kind: K, amount: u64) {
        increase_counter(&self.counts[kind.index()], amount);
    }

    fn get(&self, kind: K) -> u64 {
        self.counts[kind.index()].load(Ordering::Relaxed)
    }
}

/// Only one thread writes a counter, so it needs no atomic addition.
pub(crate) fn increase_counter(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn new(most_owners: usize) -> Self {
        Self(Arc::new(MetricsRegistry { workers: Mutex::default(), most_owners }))
    }

    /// Adds the metrics to a registry. Their names have no prefix: that is the registry's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    pub(crate) fn add_worker(&self) -> Arc<WorkerCounters> {
        let worker = Arc::new(WorkerCounters {
            connections: Kinds::default(),
            open: Default::default(),
            refused: Kinds::default(),
            cut_off: Kinds::default(),
            buffered: AtomicU64::new(0),
            handshakes: Kinds::default(),
            log_entries_dropped: AtomicU64::new(0),
            spans_dropped: Kinds::default(),
            owners: Mutex::default(),
            none: Arc::default(),
            other: Arc::default(),
            most_owners: self.0.most_owners,
        });
        lock(&self.0.workers).push(worker.clone());
        worker
    }

    fn workers(&self) -> Vec<Arc<WorkerCounters>> {
        lock(&self.0.workers).clone()
    }
}

impl WorkerCounters {
    /// The counters of an owner's requests. The caller keeps them: this takes a lock.
    pub fn owner(&self, owner: Option<&RouteOwner>) -> Arc<OwnerCounters> {
        let Some(owner) = owner else { return self.none.clone() };
        let mut owners = lock(&self.owners);
        if let Some(known) = owners.get(owner) {
            return known.clone();
        }
        if owners.len() >= self.most_owners {
            return self.other.clone();
        }
        let counters = Arc::<OwnerCounters>::default();
        owners.insert(owner.clone(), counters.clone());
        counters
    }

    /// Removes the series of owners that the worker has not kept.
    pub(crate) fn forget_unused_owners(&self) {
        lock(&self.owners).retain(|_, counters| Arc::strong_count(counters) > 1);
    }

    pub fn opened(&self, listener: Listener) {
        self.connections.count(listener);
        self.open[listener.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub fn closed(&self, listener: Listener) {
        self.open[listener.index()].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A panic while counting leaves counters that are still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
