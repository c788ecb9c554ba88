//! A proxy with its configuration.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_http::upstream::UpstreamProtocol;
use lb_http::{
    Action, HostPattern, PathPattern, Route, RouteOwner, RoutePolicy, Upstream, UpstreamName,
};
use lb_proxy::access_log::{AccessLogEntry, Batch};
use lb_proxy::{Certificate, Config, HostTls, Proxy, ProxySettings};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

/// Limit on everything that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct World {
    pub proxy: Option<Proxy>,
    pub config: watch::Sender<Arc<Config>>,
    log: mpsc::Receiver<Batch>,
}

pub const HOST: &str = "a.test";

impl World {
    pub fn start(config: Config) -> Self {
        Self::with(config, |_| {})
    }

    /// One worker, so that pooled connections are where the next request comes.
    pub fn with(config: Config, change: impl FnOnce(&mut ProxySettings)) -> Self {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut settings = ProxySettings::new(vec![local], vec![local]);
        let (to_log, log) = mpsc::channel(1_000);
        settings.workers = 1;
        settings.access_log = Some(to_log);
        change(&mut settings);
        let (config, receiver) = watch::channel(Arc::new(config));
        let proxy = Proxy::start(settings, receiver).unwrap();
        Self { proxy: Some(proxy), config, log }
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    pub fn http(&self) -> SocketAddr {
        self.proxy().http()[0]
    }

    pub fn https(&self) -> SocketAddr {
        self.proxy().https()[0]
    }

    pub fn metrics(&self) -> String {
        let mut registry = Registry::default();
        self.proxy().metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    pub fn metric(&self, series: &str) -> u64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
    }

    /// Entries of the access log, until one satisfies the condition.
    pub fn logged(&mut self, condition: impl Fn(&AccessLogEntry) -> bool) -> AccessLogEntry {
        let start = Instant::now();
        loop {
            let batch = self.log.try_recv().unwrap_or_default();
            if let Some(entry) = batch.into_iter().find(|entry| condition(entry)) {
                return entry;
            }
            assert!(start.elapsed() < PATIENCE, "no such entry");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn name(service: &str, protocol: UpstreamProtocol) -> UpstreamName {
    UpstreamName {
        namespace: "default".into(),
        service: service.into(),
        port: "80".into(),
        protocol,
        tls: None,
    }
}

pub fn upstream(addresses: &[SocketAddr]) -> Arc<Upstream> {
    let endpoints =
        addresses.iter().map(|&address| lb_http::UpstreamEndpoint { address, is_local: false });
    Arc::new(Upstream { endpoints: endpoints.collect(), draining: Vec::new() })
}

/// All requests for `HOST` go to these addresses.
pub fn config(addresses: &[SocketAddr]) -> Config {
    policy_config(addresses, RoutePolicy::default())
}

pub fn policy_config(addresses: &[SocketAddr], policy: RoutePolicy) -> Config {
    protocol_config(addresses, policy, UpstreamProtocol::Http1)
}

pub fn protocol_config(
    addresses: &[SocketAddr],
    policy: RoutePolicy,
    protocol: UpstreamProtocol,
) -> Config {
    named_config(name("web", protocol), addresses, policy)
}

pub fn named_config(name: UpstreamName, addresses: &[SocketAddr], policy: RoutePolicy) -> Config {
    let mut config = Config::default();
    add_host(&mut config, HOST, &name, policy);
    config.upstreams.insert(name, upstream(addresses));
    config
}

pub fn add_host(config: &mut Config, host: &str, upstream: &UpstreamName, policy: RoutePolicy) {
    add_rules(config, host, upstream, vec![("/", policy)]);
}

/// Rules with these prefixes.
pub fn add_rules(
    config: &mut Config,
    host: &str,
    upstream: &UpstreamName,
    rules: Vec<(&str, RoutePolicy)>,
) {
    let rule = |(prefix, policy): (&str, RoutePolicy)| {
        let route = Arc::new(Route {
            owner: RouteOwner { namespace: "default".into(), name: "web".into() },
            action: Action::Forward(upstream.clone()),
            canaries: Vec::new(),
            policy: Arc::new(policy),
        });
        (PathPattern::Prefix(prefix.into()), route)
    };
    let host = HostPattern::parse(host).unwrap();
    config.table.set_host(host, rules.into_iter().map(rule).collect());
}

/// A certificate for these names that is its own authority, in PEM.
pub fn self_signed(names: &[&str]) -> (String, String) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let pair = rcgen::generate_simple_self_signed(names).unwrap();
    (pair.cert.pem(), pair.signing_key.serialize_pem())
}

pub fn terminate(certificate: &(String, String)) -> Arc<HostTls> {
    let certificate = Certificate::parse(certificate.0.as_bytes(), certificate.1.as_bytes());
    Arc::new(HostTls::Terminate { certificate: Arc::new(certificate.unwrap()), clients: None })
}

pub fn hosts(entries: &[(&str, &Arc<HostTls>)]) -> HashMap<HostPattern, Arc<HostTls>> {
    let parse = |host: &str| match host {
        "*" => HostPattern::Any,
        host => HostPattern::parse(host).unwrap(),
    };
    entries.iter().map(|(host, tls)| (parse(host), (*tls).clone())).collect()
}
