//! What a worker keeps for each route that it serves. So a request hashes no names, and changes no reference count that
//! other workers change as well: only those of this worker's own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_http::jwt::KeySet;
use lb_http::oidc::ProviderDocument;
use lb_http::{Action, Route};

use crate::metrics::{OwnerCounters, WorkerCounters};
use crate::published::DocumentSlot;
use crate::upstream::Endpoints;

#[derive(Default)]
pub(crate) struct Routes(RefCell<HashMap<*const Route, Rc<Known>>>);

pub(crate) struct Known {
    /// While it is here, no other route can have its address.
    pub route: Arc<Route>,
    pub counters: Arc<OwnerCounters>,
    /// For the tokens that the route demands.
    pub token_keys: DocumentSlot<KeySet>,
    /// Where its users sign in.
    pub provider: DocumentSlot<ProviderDocument>,
    endpoints: RefCell<Option<Current>>,
    used: Cell<Instant>,
}

/// The endpoints as of one snapshot.
struct Current {
    snapshot: u64,
    endpoints: Rc<Endpoints>,
}

/// How long a route without requests is kept, and with it its owner's counters.
const KEPT: Duration = Duration::from_secs(3600);
/// How long a route that no snapshot has is kept without requests.
const KEPT_AFTER_END: Duration = Duration::from_secs(60);

impl Routes {
    pub fn get(&self, route: &Arc<Route>, counters: &WorkerCounters, now: Instant) -> Rc<Known> {
        let mut routes = self.0.borrow_mut();
        let known = routes.entry(Arc::as_ptr(route)).or_insert_with(|| {
            Rc::new(Known {
                route: route.clone(),
                counters: counters.owner(Some(&route.owner)),
                token_keys: DocumentSlot::default(),
                provider: DocumentSlot::default(),
                endpoints: RefCell::default(),
                used: Cell::new(now),
            })
        });
        known.used.set(now);
        known.clone()
    }

    pub(crate) fn tend(&self, counters: &WorkerCounters, now: Instant) {
        let mut routes = self.0.borrow_mut();
        let before = routes.len();
        routes.retain(|_, known| {
            let has_ended = Arc::strong_count(&known.route) == 1;
            let kept = if has_ended { KEPT_AFTER_END } else { KEPT };
            now.saturating_duration_since(known.used.get()) < kept
        });
        if routes.len() < before {
            drop(routes);
            counters.forget_unused_owners();
        }
    }
}

impl Known {
    /// The endpoints of the route's upstream as of the snapshot with this number. `find` looks them up.
    pub fn endpoints(
        &self,
        snapshot: u64,
        find: impl FnOnce(&lb_http::UpstreamName) -> Option<Rc<Endpoints>>,
    ) -> Option<Rc<Endpoints>> {
        let mut current = self.endpoints.borrow_mut();
        if let Some(current) = current.as_ref().filter(|current| current.snapshot == snapshot) {
            return Some(current.endpoints.clone());
        }
        let Action::Forward(upstream) = &self.route.action else { return None };
        *current = find(upstream).map(|endpoints| Current { snapshot, endpoints });
        current.as_ref().map(|current| current.endpoints.clone())
    }
}

#[cfg(test)]
mod tests {
    use lb_http::upstream::UpstreamProtocol;
    use lb_http::{RouteOwner, Upstream, UpstreamName, balance};
    use tokio::sync::watch;

    use super::*;
    use crate::config::Config;
    use crate::metrics::Metrics;
    use crate::settings::ProxyLimits;
    use crate::upstream::{Balancers, Upstreams};

    #[test]
    fn endpoints_stay_known_while_a_route_uses_them() {
        let start = Instant::now();
        let name = UpstreamName {
            namespace: "default".into(),
            service: "web".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        let route = Arc::new(Route {
            owner: RouteOwner { namespace: "default".into(), name: "web".into() },
            action: Action::Forward(name.clone()),
            canaries: Vec::new(),
            policy: Arc::default(),
        });
        let mut config = Config::default();
        config.upstreams.insert(name.clone(), Arc::new(Upstream::default()));
        let config = Arc::new(config);
        let (_sender, newest) = watch::channel(config.clone());
        let balancers = Balancers::new(balance::BalancerSettings::default(), newest);
        let upstreams = Upstreams::default();
        let known = Routes::default().get(&route, &Metrics::new(1).add_worker(), start);
        let endpoints_at = |now| {
            let find = |name: &UpstreamName| upstreams.get(name, &config, &balancers, now);
            known.endpoints(0, find).unwrap()
        };
        let first = endpoints_at(start);
        for minutes in 1..60 {
            let now = start + Duration::from_secs(60 * minutes);
            assert!(Rc::ptr_eq(&endpoints_at(now), &first));
            upstreams.tend(&config, &balancers, &ProxyLimits::default(), now);
        }
        // Also after a pause in which all else would be forgotten.
        let mut now = start + Duration::from_secs(3540 + 601);
        upstreams.tend(&config, &balancers, &ProxyLimits::default(), now);
        now += Duration::from_secs(1);
        let found = upstreams.get(&name, &config, &balancers, now).unwrap();
        assert!(Rc::ptr_eq(&endpoints_at(now), &found));
    }
}
