//! The balancers of all upstreams, shared by the workers: requests in flight, ejections and slow starts are those of the
//! whole process.
//!
//! Invariant: a balancer's endpoints are never older than those of any worker's snapshot. A worker that is behind
//! others does not bring back endpoints that have gone.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lb_http::balance::{Balancer, BalancerSettings};
use lb_http::{Upstream, UpstreamName};
use tokio::sync::watch;

use crate::config::Config;

pub(crate) struct Balancers {
    settings: Arc<BalancerSettings>,
    /// The newest snapshot, whatever the workers have.
    newest: watch::Receiver<Arc<Config>>,
    by_name: Mutex<HashMap<UpstreamName, Arc<UpstreamBalancer>>>,
}

/// The balancer of one upstream.
pub(crate) struct UpstreamBalancer {
    balancer: Balancer,
    /// What the balancer knows.
    current: Mutex<Arc<Upstream>>,
}

impl Deref for UpstreamBalancer {
    type Target = Balancer;

    fn deref(&self) -> &Balancer {
        &self.balancer
    }
}

impl Balancers {
    pub fn new(settings: BalancerSettings, newest: watch::Receiver<Arc<Config>>) -> Self {
        Self { settings: Arc::new(settings), newest, by_name: Mutex::default() }
    }

    /// The balancer of an upstream that the worker uses for the first time.
    pub fn get(
        &self,
        name: &UpstreamName,
        upstream: &Arc<Upstream>,
        now: Instant,
    ) -> Arc<UpstreamBalancer> {
        let mut by_name = lock(&self.by_name);
        let shared = by_name.entry(name.clone()).or_insert_with(|| {
            let balancer = Balancer::new(self.settings.clone(), upstream, now);
            Arc::new(UpstreamBalancer { balancer, current: Mutex::new(upstream.clone()) })
        });
        let shared = shared.clone();
        drop(by_name);
        self.update(name, &shared, now);
        shared
    }

    /// Brings it up to date, if no other worker has. What is known about endpoints that stay is kept.
    pub fn update(&self, name: &UpstreamName, shared: &UpstreamBalancer, now: Instant) {
        let mut current = lock(&shared.current);
        // With the lock held, so that an older snapshot cannot follow a newer one.
        let newest = self.newest.borrow().upstreams.get(name).cloned();
        if let Some(newest) = newest
            && !Arc::ptr_eq(&newest, &current)
        {
            shared.balancer.update(&newest, now);
            *current = newest;
        }
    }

    /// Forgets those that no worker uses.
    pub(crate) fn forget_unused(&self) {
        lock(&self.by_name).retain(|_, shared| Arc::strong_count(shared) > 1);
    }
}

/// A panic leaves a balancer that is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use lb_http::UpstreamEndpoint;
    use lb_http::upstream::UpstreamProtocol;

    use super::*;

    fn config(name: &UpstreamName, ports: &[u16]) -> Arc<Config> {
        let endpoints = ports.iter().map(|port| UpstreamEndpoint {
            address: SocketAddr::from(([10, 0, 0, 1], *port)),
            is_local: false,
        });
        let mut config = Config::default();
        let upstream = Upstream { endpoints: endpoints.collect(), draining: Vec::new() };
        config.upstreams.insert(name.clone(), Arc::new(upstream));
        Arc::new(config)
    }

    #[test]
    fn workers_share_a_balancer_and_none_brings_back_old_endpoints() {
        let name = UpstreamName {
            namespace: "default".into(),
            service: "web".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        let now = Instant::now();
        let old = config(&name, &[1, 2]);
        let (sender, newest) = watch::channel(old.clone());
        let balancers = Balancers::new(BalancerSettings::default(), newest);
        let first = balancers.get(&name, &old.upstreams[&name], now);
        let ports = || -> Vec<u16> {
            first.statuses(now).iter().map(|status| status.address.port()).collect()
        };
        assert_eq!(ports(), [1, 2]);
        sender.send(config(&name, &[2, 3])).unwrap();
        // A worker that has not seen the newer snapshot yet.
        let second = balancers.get(&name, &old.upstreams[&name], now);
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(ports(), [2, 3]);

        drop(second);
        balancers.forget_unused();
        assert_eq!(lock(&balancers.by_name).len(), 1);
        drop(first);
        balancers.forget_unused();
        assert!(lock(&balancers.by_name).is_empty());
    }
}
