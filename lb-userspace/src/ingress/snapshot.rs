//! The proxy's configuration as one value, which changes of the model's result are applied to.

use std::sync::Arc;

use lb_proxy::Config;

use super::model::{Backends, Delta};

/// Changes a snapshot. Upstreams that are names in DNS have no endpoints until these are resolved.
pub fn apply(config: &mut Config, delta: &Delta) {
    for (host, rules) in &delta.hosts {
        // The model reports rules that are not served.
        config.table.set_host(host.clone(), rules.clone());
    }
    for (upstream, backends) in &delta.upstreams {
        match backends {
            Some(Backends::Endpoints(endpoints)) => {
                config.upstreams.insert(upstream.clone(), Arc::clone(endpoints));
            }
            Some(Backends::Name { .. }) => {
                config.upstreams.entry(upstream.clone()).or_default();
            }
            None => {
                config.upstreams.remove(upstream);
            }
        }
    }
    for (host, tls) in &delta.tls {
        match tls {
            Some(tls) => config.tls.insert(host.clone(), Arc::clone(tls)),
            None => config.tls.remove(host),
        };
    }
}
