//! A worker: one thread with its own sockets, runtime, connections to endpoints and counters. What workers share is
//! read-only or off the path of requests.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::hash::RandomState;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_http::auth::VerifiedCredentials;
use lb_http::rate::{DEFAULT_CAPACITY, Limiter};
use lb_http::trace::RequestSpan;
use lb_http::{Route, UpstreamName};
use lb_limits::{ClientNetwork, Shares};
use slab::Slab;
use tokio::sync::watch;

use crate::access_log::{AccessLogEntry, Batch};
use crate::config::Config;
use crate::http::http1::FutureSlots;
use crate::limits::Sources;
use crate::limits::verifications::Verifications;
use crate::metrics::{Listener, OwnerCounters, WorkerCounters, increase_counter};
use crate::orders::{ConnectionOrders, Order};
use crate::published::Issuers;
use crate::routes::{Known, Routes};
use crate::settings::{ProxyLimits, ProxySettings};
use crate::spans::WorkerSpans;
use crate::stop::Stop;
use crate::tls::server::Handshakes;
use crate::upstream::{Balancers, Endpoints, Upstreams};

/// What all workers share.
pub(crate) struct WorkerContext {
    pub settings: ProxySettings,
    pub sources: Arc<Sources>,
    pub rates: Limiter,
    pub verified: Arc<VerifiedCredentials>,
    pub verifications: Verifications,
    pub handshakes: Handshakes,
    pub balancers: Balancers,
    pub issuers: Issuers,
    /// Makes marks that copies of requests are recognized by.
    pub copy_marks: RandomState,
}

impl WorkerContext {
    /// An error says why there are no random numbers.
    pub fn new(
        mut settings: ProxySettings,
        config: watch::Receiver<Arc<Config>>,
    ) -> Result<Self, String> {
        settings.balancing.affinity_keys = settings.session_keys.affinity();
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| e.to_string())?;
        let now = Instant::now();
        Ok(Self {
            sources: Sources::new(&settings.limits),
            rates: Limiter::new(DEFAULT_CAPACITY, RandomState::new(), now),
            verified: Arc::new(VerifiedCredentials::new(secret)),
            verifications: Verifications::default(),
            handshakes: Handshakes::new(settings.session_keys.clone())?,
            balancers: Balancers::new(settings.balancing.clone(), config),
            issuers: Issuers::new(settings.limits.key_fetch_interval),
            copy_marks: RandomState::new(),
            settings,
        })
    }
}

pub(crate) struct Worker {
    pub shared: Arc<WorkerContext>,
    pub counters: Arc<WorkerCounters>,
    pub upstreams: Upstreams,
    pub connections: RefCell<Slab<Rc<ConnectionOrders>>>,
    config: RefCell<Snapshot>,
    /// Number of the snapshot.
    snapshot: Cell<u64>,
    routes: Routes,
    unrouted: Arc<OwnerCounters>,
    log: RefCell<Batch>,
    /// `None`: no request is traced.
    pub spans: Option<WorkerSpans>,
    random: Cell<u64>,
    is_draining: Cell<bool>,
    /// Responses that are being compressed.
    pub compressions: Shares<ClientNetwork>,
    /// Octets that copies of requests take, by namespace.
    pub mirrored: Shares<Arc<str>>,
    /// Connections that were accepted and are not yet clients.
    arriving: Cell<usize>,
    /// Connections that are forwarded without being decrypted.
    passed: Cell<usize>,
    /// Of requests' futures, whose type has no name.
    future_slots: OnceCell<Rc<dyn Any>>,
}

/// A connection that was accepted.
pub(crate) struct Arriving(Rc<Worker>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.set(self.0.arriving.get() - 1);
    }
}

/// See [`Worker::pass`].
pub(crate) struct Passed {
    worker: Rc<Worker>,
    listener: Listener,
}

impl Drop for Passed {
    fn drop(&mut self) {
        self.worker.passed.set(self.worker.passed.get() - 1);
        self.worker.counters.closed(self.listener);
    }
}

/// A reference to a snapshot whose count only this worker changes.
pub(crate) type Snapshot = Rc<Arc<Config>>;

/// Entries of the access log that are sent at once.
const BATCH: usize = 64;
/// Longest time until an entry is sent, and until unused connections are closed.
const TICK: Duration = Duration::from_millis(500);
impl Worker {
    pub fn new(
        shared: Arc<WorkerContext>,
        counters: Arc<WorkerCounters>,
        config: Arc<Config>,
        seed: u64,
    ) -> Rc<Self> {
        let (limits, traces) = (&shared.settings.limits, shared.settings.traces.clone());
        let spans = |traces| WorkerSpans::new(traces, shared.settings.workers, counters.clone());
        Rc::new(Self {
            upstreams: Upstreams::default(),
            connections: RefCell::default(),
            config: RefCell::new(Rc::new(config)),
            snapshot: Cell::new(0),
            routes: Routes::default(),
            unrouted: counters.owner(None),
            log: RefCell::default(),
            spans: traces.map(spans),
            random: Cell::new(seed | 1),
            is_draining: Cell::new(false),
            compressions: Shares::new(limits.compressions, limits.compressions_per_source),
            mirrored: Shares::new(limits.mirrored_bytes, limits.mirrored_bytes_per_namespace),
            arriving: Cell::new(0),
            passed: Cell::new(0),
            future_slots: OnceCell::new(),
            shared,
            counters,
        })
    }

    /// All callers that want the same type share them.
    pub fn future_slots<F: 'static>(&self) -> Rc<FutureSlots<F>> {
        let slots = self.future_slots.get_or_init(|| Rc::<FutureSlots<F>>::default());
        slots.clone().downcast().unwrap_or_default()
    }

    pub fn limits(&self) -> &ProxyLimits {
        &self.shared.settings.limits
    }

    pub fn config(&self) -> Snapshot {
        self.config.borrow().clone()
    }

    /// Counts a connection that is passed on, until the guard is dropped.
    pub fn pass(self: &Rc<Self>, listener: Listener) -> Passed {
        self.passed.set(self.passed.get() + 1);
        self.counters.opened(listener);
        Passed { worker: self.clone(), listener }
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Until it is dropped, the worker does not end.
    pub(crate) fn begin_arrival(self: &Rc<Self>) -> Arriving {
        self.arriving.set(self.arriving.get() + 1);
        Arriving(self.clone())
    }

    /// A random number that may be predictable (xorshift64*).
    pub fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn random_pair(&self) -> u128 {
        u128::from(self.random()) << 64 | u128::from(self.random())
    }

    pub fn route(&self, route: &Arc<Route>, now: Instant) -> Rc<Known> {
        self.routes.get(route, &self.counters, now)
    }

    /// Counters of requests without a route.
    pub(crate) fn no_owner(&self) -> &Arc<OwnerCounters> {
        &self.unrouted
    }

    /// The endpoints of an upstream as of the current snapshot.
    pub fn endpoints(&self, upstream: &UpstreamName, now: Instant) -> Option<Rc<Endpoints>> {
        self.upstreams.get(upstream, &self.config(), &self.shared.balancers, now)
    }

    /// The endpoints of a route as of the current snapshot.
    pub(crate) fn endpoints_of(&self, route: &Known, now: Instant) -> Option<Rc<Endpoints>> {
        route.endpoints(self.snapshot.get(), |upstream| self.endpoints(upstream, now))
    }

    pub fn log(&self, entry: AccessLogEntry) {
        let mut log = self.log.borrow_mut();
        log.push(entry);
        if log.len() >= BATCH {
            self.send_log(&mut log);
        }
    }

    fn send_log(&self, log: &mut Batch) {
        let Some(to) = &self.shared.settings.access_log else { return log.clear() };
        if log.is_empty() {
            return;
        }
        let count = log.len() as u64;
        if to.try_send(std::mem::replace(log, Vec::with_capacity(BATCH))).is_err() {
            increase_counter(&self.counters.log_entries_dropped, count);
        }
    }

    pub fn logs(&self) -> bool {
        self.shared.settings.access_log.is_some()
    }

    /// Takes over each snapshot, until the sender is gone; then the last one stays.
    pub async fn follow(self: Rc<Self>, mut config: watch::Receiver<Arc<Config>>) {
        while config.changed().await.is_ok() {
            let snapshot = config.borrow_and_update().clone();
            self.config.replace(Rc::new(snapshot));
            self.snapshot.set(self.snapshot.get() + 1);
        }
    }

    /// What has to be done from time to time.
    pub(crate) async fn tend(self: Rc<Self>) {
        let mut ticks: u64 = 0;
        loop {
            tokio::time::sleep(TICK).await;
            self.flush();
            ticks += 1;
            let now = Instant::now();
            self.upstreams.tend(&self.config(), &self.shared.balancers, self.limits(), now);
            if ticks.is_multiple_of(20) {
                self.routes.tend(&self.counters, now);
                if let Some(spans) = &self.spans {
                    spans.tend(now);
                }
            }
        }
    }

    /// Closes all connections after their current requests, and waits until there are none.
    pub async fn drain(&self, mut stop: watch::Receiver<Stop>) {
        self.is_draining.set(true);
        for (_, orders) in self.connections.borrow().iter() {
            orders.give_order(Order::Drain);
        }
        let all_gone = async {
            // Dropping a client wakes no task, and the end of the process can wait for a moment.
            while !self.connections.borrow().is_empty()
                || self.arriving.get() + self.passed.get() > 0
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = all_gone => {}
            () = tokio::time::sleep(self.shared.settings.shutdown_grace) => {}
            _ = stop.wait_for(|stop| *stop == Stop::Now) => {}
        }
        self.flush();
    }

    pub(crate) fn push_span(&self, span: Option<RequestSpan>) {
        if let (Some(spans), Some(span)) = (&self.spans, span) {
            spans.push(span);
        }
    }

    /// Sends what has been collected for the threads that write and export it.
    fn flush(&self) {
        self.send_log(&mut self.log.borrow_mut());
        if let Some(spans) = &self.spans {
            spans.flush();
        }
    }
}
