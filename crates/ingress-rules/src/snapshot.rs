//! The proxy's configuration as one value, which changes of the model's result are applied to.

use std::sync::Arc;

use lb_http::IngressTable;
use lb_proxy::Config;

use super::{Delta, IngressRuleSettings, UpstreamTarget};

/// The snapshot before the first change.
pub fn new_config(settings: &IngressRuleSettings) -> Config {
    Config { table: IngressTable::new(settings.slashes), ..Config::default() }
}

/// Changes a snapshot. Upstreams that are names in DNS have no endpoints until these are resolved.
pub fn apply_changes(config: &mut Config, delta: &Delta) {
    for (host, rules) in &delta.hosts {
        // The model reports rules that are not served.
        config.table.set_host(host.clone(), rules.clone());
    }
    for (upstream, backends) in &delta.upstreams {
        match backends {
            Some(UpstreamTarget::Endpoints(endpoints)) => {
                config.upstreams.insert(upstream.clone(), Arc::clone(endpoints));
            }
            Some(UpstreamTarget::Name { .. }) => {
                config.upstreams.insert(upstream.clone(), Arc::default());
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

#[cfg(test)]
mod tests {
    use lb_http::upstream::UpstreamProtocol;
    use lb_http::{Upstream, UpstreamEndpoint, UpstreamName};

    use super::*;

    #[test]
    fn an_upstream_that_becomes_a_name_has_no_endpoints() {
        let upstream = UpstreamName {
            namespace: "default".into(),
            service: "web".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        let endpoints =
            vec![UpstreamEndpoint { address: ([10, 0, 0, 1], 80).into(), is_local: false }];
        let endpoints = Arc::new(Upstream { endpoints, draining: Vec::new() });
        let mut config = Config::default();
        for (backends, count) in [
            (UpstreamTarget::Endpoints(endpoints), 1),
            (UpstreamTarget::Name { host: "a.test".into(), port: 80 }, 0),
        ] {
            let upstreams = [(upstream.clone(), Some(backends))].into();
            apply_changes(&mut config, &Delta { upstreams, ..Delta::default() });
            assert_eq!(config.upstreams[&upstream].endpoints.len(), count);
        }
    }
}
