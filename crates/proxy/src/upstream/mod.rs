//! What a worker knows about upstreams: their endpoints, and its connections to these. Kept across snapshots.

mod balancers;
mod connect;
mod http1;
mod pool;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_http::{Upstream, UpstreamName};

use crate::config::Config;
use crate::settings::ProxyLimits;
use crate::tls::client::EndpointTls;

pub(crate) use balancers::{Balancers, UpstreamBalancer};
pub(crate) use connect::{Wanted, connect_tcp};
pub(crate) use http1::NoResponse;
pub(crate) use pool::{ConnectionPool, EndpointResponseBody, Lease, Local, Sent};

/// The upstreams that this worker has used lately.
#[derive(Default)]
pub(crate) struct Upstreams {
    by_name: RefCell<HashMap<UpstreamName, Rc<Endpoints>>>,
    tended: Cell<Option<Instant>>,
}

/// The endpoints of one upstream.
pub(crate) struct Endpoints {
    pub balancer: Arc<UpstreamBalancer>,
    name: UpstreamName,
    /// As of this worker's snapshot.
    current: RefCell<Arc<Upstream>>,
    /// `Err`: what of the settings of TLS cannot be used.
    tls: Result<Option<Rc<EndpointTls>>, String>,
    pools: RefCell<HashMap<SocketAddr, Rc<ConnectionPool>>>,
    used: Cell<Instant>,
}

/// How long an upstream without requests is remembered, if no route or request holds its endpoints.
const KEPT: Duration = Duration::from_secs(600);
/// Time between two looks at unused connections.
const TEND: Duration = Duration::from_secs(5);

impl Upstreams {
    /// The upstream as the snapshot has it. `None`: the snapshot has none of this name.
    pub fn get(
        &self,
        name: &UpstreamName,
        config: &Config,
        balancers: &Balancers,
        now: Instant,
    ) -> Option<Rc<Endpoints>> {
        let upstream = config.upstreams.get(name)?;
        if let Some(known) = self.by_name.borrow().get(name) {
            known.used.set(now);
            known.update(upstream, balancers, now);
            return Some(known.clone());
        }
        let endpoints = Endpoints::new(name.clone(), upstream.clone(), balancers, now);
        self.by_name.borrow_mut().insert(name.clone(), endpoints.clone());
        Some(endpoints)
    }

    /// Closes connections that were not used for long, and forgets upstreams that are gone.
    pub(crate) fn tend(
        &self,
        config: &Config,
        balancers: &Balancers,
        limits: &ProxyLimits,
        now: Instant,
    ) {
        if self.tended.get().is_some_and(|at| now.saturating_duration_since(at) < TEND) {
            return;
        }
        self.tended.set(Some(now));
        let mut by_name = self.by_name.borrow_mut();
        let before = by_name.len();
        by_name.retain(|name, endpoints| {
            // A holder goes on using them, so others must get the same ones.
            let is_used = Rc::strong_count(endpoints) > 1
                || now.saturating_duration_since(endpoints.used.get()) < KEPT;
            match config.upstreams.get(name).filter(|_| is_used) {
                Some(upstream) => {
                    endpoints.update(upstream, balancers, now);
                    endpoints.tend(limits, now);
                    true
                }
                None => {
                    endpoints.close();
                    false
                }
            }
        });
        if by_name.len() < before {
            balancers.forget_unused();
        }
    }
}

impl Endpoints {
    pub fn new(
        name: UpstreamName,
        upstream: Arc<Upstream>,
        balancers: &Balancers,
        now: Instant,
    ) -> Rc<Self> {
        let tls = if name.protocol.uses_tls() {
            let tls = EndpointTls::new(name.protocol, name.tls.as_ref());
            tls.map(|tls| Some(Rc::new(tls)))
        } else {
            Ok(None)
        };
        if let Err(error) = &tls {
            tracing::warn!(upstream = %name, %error, "cannot encrypt connections to endpoints");
        }
        Rc::new(Self {
            balancer: balancers.get(&name, &upstream, now),
            name,
            current: RefCell::new(upstream),
            tls,
            pools: RefCell::default(),
            used: Cell::new(now),
        })
    }

    pub fn is_usable(&self) -> bool {
        self.tls.is_ok()
    }

    /// For new requests.
    pub(crate) fn has_endpoints(&self) -> bool {
        !self.current.borrow().endpoints.is_empty()
    }

    /// Takes over other endpoints. Those that stay keep their connections and what is known about them.
    pub fn update(&self, upstream: &Arc<Upstream>, balancers: &Balancers, now: Instant) {
        if Arc::ptr_eq(&self.current.borrow(), upstream) {
            return;
        }
        balancers.update(&self.name, &self.balancer, now);
        self.current.replace(upstream.clone());
        let is_endpoint = |address: &SocketAddr| {
            let mut all = upstream.endpoints.iter().chain(&upstream.draining);
            all.any(|endpoint| endpoint.address == *address)
        };
        self.pools.borrow_mut().retain(|address, pool| {
            let stays = is_endpoint(address);
            if !stays {
                pool.close();
            }
            stays
        });
    }

    pub fn pool(&self, address: SocketAddr) -> Rc<ConnectionPool> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(address).or_insert_with(|| {
            let tls = self.tls.as_ref().ok().cloned().flatten();
            ConnectionPool::new(address, self.name.protocol, tls)
        });
        pool.clone()
    }

    fn tend(&self, limits: &ProxyLimits, now: Instant) {
        for pool in self.pools.borrow().values() {
            pool.tend(limits, now);
        }
    }

    fn close(&self) {
        for (_, pool) in self.pools.borrow_mut().drain() {
            pool.close();
        }
    }
}
