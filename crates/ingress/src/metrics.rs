//! Metrics of the Ingress proxy: of its requests (`lb_proxy`), its configuration, and its process.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use lb_otlp::ExportMetrics;
use lb_process::readiness::MetricsSource;
use lb_process::{ClientRequests, process_registry};
use lb_proxy::{Config, HostTls};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

const METRICS_PREFIX: &str = "millrace_ingress";
/// Hosts whose certificates have series of their own: those that expire first.
const MAX_CERTIFICATES: usize = 1_000;

pub(crate) struct IngressMetrics {
    registry: Mutex<Registry>,
    requests: ClientRequests,
    changes: Counter,
    last_change: Gauge<f64, AtomicU64>,
    ingresses: Gauge,
    problems: Gauge,
    unwatched_secrets: Gauge,
    ready: Gauge,
    certificates: CertificateMetrics,
    spans: ExportMetrics,
}

impl IngressMetrics {
    pub fn new() -> Self {
        let mut registry = process_registry();
        let requests = ClientRequests::default();
        requests.register(&mut registry);
        let own = registry.sub_registry_with_prefix(METRICS_PREFIX);
        let changes = Counter::default();
        own.register("config_changes", "Changes of what is served", changes.clone());
        let last_change = Gauge::default();
        let help = "When what is served last changed";
        own.register("config_last_change_timestamp_seconds", help, last_change.clone());
        let gauge = |own: &mut Registry, name: &str, help: &str| {
            let gauge = Gauge::default();
            own.register(name, help, gauge.clone());
            gauge
        };
        let ingresses = gauge(own, "served_ingresses", "Ingresses of the served classes");
        let help = "Objects of which something is not served, or not as it is written";
        let problems = gauge(own, "objects_with_problems", help);
        let help =
            "Secrets that Ingresses refer to and that are not watched, because there are too many";
        let unwatched_secrets = gauge(own, "unwatched_secrets", help);
        let ready = gauge(own, "ready", "Whether all objects are known and the ports are open");
        let certificates = CertificateMetrics::default();
        own.register_collector(Box::new(certificates.clone()));
        let spans = ExportMetrics::default();
        spans.register(own);
        Self {
            registry: registry.into(),
            requests,
            changes,
            last_change,
            ingresses,
            problems,
            unwatched_secrets,
            ready,
            certificates,
            spans,
        }
    }

    /// Includes the metrics of the proxy.
    pub fn add(&self, proxy: &lb_proxy::Metrics) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        proxy.register(registry.sub_registry_with_prefix(METRICS_PREFIX));
    }

    /// For code that creates clients of the API server.
    pub fn requests(&self) -> &ClientRequests {
        &self.requests
    }

    /// For the exporter of spans.
    pub fn spans(&self) -> &ExportMetrics {
        &self.spans
    }

    pub fn set_config(&self, config: &Arc<Config>) {
        self.changes.inc();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_change.set(now.as_secs_f64());
        self.certificates.set(Arc::clone(config));
    }

    pub(crate) fn set_ingresses(&self, served: usize, with_problems: usize) {
        self.ingresses.set(served as i64);
        self.problems.set(with_problems as i64);
    }

    pub(crate) fn set_unwatched_secrets(&self, count: usize) {
        self.unwatched_secrets.set(count as i64);
    }
}

impl MetricsSource for IngressMetrics {
    fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only if a metric does, and metrics that cannot be read are left out.
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = text::encode(&mut text, &registry);
        text
    }

    fn set_ready(&self, is_ready: bool) {
        self.ready.set(is_ready.into());
    }
}

/// When certificates expire, by host.
#[derive(Clone, Default)]
struct CertificateMetrics(Arc<Mutex<Arc<Config>>>);

impl fmt::Debug for CertificateMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl CertificateMetrics {
    fn set(&self, config: Arc<Config>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

impl Collector for CertificateMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let config = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut found: Vec<(i64, String)> = config
            .tls
            .iter()
            .filter_map(|(host, tls)| match &**tls {
                HostTls::Terminate { certificate, .. } => {
                    Some((certificate.not_after, host.to_string()))
                }
                HostTls::Passthrough(_) | HostTls::WithoutCertificate { .. } => None,
            })
            .collect();
        found.sort();
        found.truncate(MAX_CERTIFICATES);
        let help =
            "When the certificate of a host expires; of the hosts whose certificates expire first";
        let name = "certificate_expiry_timestamp_seconds";
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (not_after, host) in found {
            metric.encode_family(&[("host", host)])?.encode_gauge(&not_after)?;
        }
        Ok(())
    }
}
