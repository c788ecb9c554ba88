//! Metrics of the assignment of addresses: in a process of its own, or among those of the agent.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lb_process::readiness::MetricsSource;
use lb_process::{ClientRequests, process_registry};
use lb_rules::ipam::{AssignmentReason, Ipam};
use lb_rules::model::AddressFamily;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// What a process has assigned. Written by it, read at a scrape.
#[derive(Clone, Default)]
pub struct AssignmentMetrics(Arc<Mutex<MeasuredState>>);

#[derive(Debug, Default)]
struct MeasuredState {
    is_leader: bool,
    pools: Vec<PoolUsage>,
    /// Services by reason; empty while another process assigns.
    services: Vec<(AssignmentReason, usize)>,
    outside: usize,
    writes: u64,
    failed_writes: u64,
    /// Kinds of MetalLB with objects that are not read.
    unread_kinds: Vec<String>,
}

#[derive(Debug)]
struct PoolUsage {
    pool: String,
    family: AddressFamily,
    used: u64,
    free: u128,
}

impl fmt::Debug for AssignmentMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl AssignmentMetrics {
    fn with<T>(&self, act: impl FnOnce(&mut MeasuredState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None`: another process assigns addresses.
    pub fn set(&self, ipam: Option<&Ipam>) {
        self.with(|state| {
            state.is_leader = ipam.is_some();
            state.pools.clear();
            state.services.clear();
            state.outside = ipam.map_or(0, Ipam::outside);
            let Some(ipam) = ipam else {
                state.unread_kinds.clear();
                return;
            };
            state.services.extend(AssignmentReason::ALL.map(|reason| (reason, ipam.count(reason))));
            state.pools.extend(ipam.usage().map(|usage| PoolUsage {
                pool: usage.pool.label(),
                family: usage.family,
                used: usage.used,
                free: usage.free,
            }));
        });
    }

    pub(crate) fn set_unread_kinds(&self, kinds: Vec<String>) {
        self.with(|state| state.unread_kinds = kinds);
    }

    pub(crate) fn count_write(&self, is_ok: bool) {
        self.with(|state| match is_ok {
            true => state.writes += 1,
            false => state.failed_writes += 1,
        });
    }
}

impl Collector for AssignmentMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        self.with(|state| {
            let help = "Whether this process assigns addresses";
            let leader = ConstGauge::new(i64::from(state.is_leader));
            let name = "millrace_address_assignment_leader";
            leader.encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;

            type Value = fn(&PoolUsage) -> f64;
            let of_pools: [(&str, &str, Value); 2] = [
                ("used", "Addresses of a pool that Services have", |usage| usage.used as f64),
                ("free", "Addresses of a pool that no Service has", |usage| usage.free as f64),
            ];
            for (what, help, value) in of_pools {
                let name = format!("millrace_address_pool_{what}_addresses");
                let mut metric = to.encode_descriptor(&name, help, None, MetricType::Gauge)?;
                for usage in &state.pools {
                    let labels =
                        [("pool", usage.pool.as_str()), ("ip_family", usage.family.name())];
                    let gauge = ConstGauge::new(value(usage));
                    gauge.encode(metric.encode_family(&labels)?)?;
                }
            }
            let help = "Services of type LoadBalancer by what became of their request";
            let name = "millrace_address_services";
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (reason, count) in &state.services {
                let gauge = ConstGauge::new(*count as i64);
                gauge.encode(metric.encode_family(&[("reason", reason.name())])?)?;
            }
            let help = "Addresses of Services that no pool contains any more";
            let name = "millrace_address_outside_pools";
            let outside = ConstGauge::new(state.outside as i64);
            outside.encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;

            let help = "Writes of the status of Services and pools";
            let name = "millrace_address_status_writes";
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (result, count) in [("ok", state.writes), ("error", state.failed_writes)] {
                let counter = ConstCounter::new(count);
                counter.encode(metric.encode_family(&[("result", result)])?)?;
            }

            let help = "Kinds of MetalLB that are not read, and have objects or may have some";
            let name = "millrace_metallb_unread_kinds";
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for kind in &state.unread_kinds {
                let gauge = ConstGauge::new(1_i64);
                gauge.encode(metric.encode_family(&[("kind", kind.as_str())])?)?;
            }
            Ok(())
        })
    }
}

/// The metrics of `millrace controller`.
pub(crate) struct ControllerRegistry {
    registry: Registry,
    ready: Gauge,
    pub requests: ClientRequests,
    pub metrics: AssignmentMetrics,
}

impl ControllerRegistry {
    pub fn new() -> Self {
        let mut registry = process_registry();
        let requests = ClientRequests::default();
        requests.register(&mut registry);
        let ready = Gauge::default();
        let help = "Whether all objects are known";
        registry.register("millrace_address_controller_ready", help, ready.clone());
        let metrics = AssignmentMetrics::default();
        registry.register_collector(Box::new(metrics.clone()));
        Self { registry, ready, requests, metrics }
    }
}

impl MetricsSource for ControllerRegistry {
    fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only if a metric does, and metrics that cannot be read are left out.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    fn set_ready(&self, is_ready: bool) {
        self.ready.set(is_ready.into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_rules::ipam::{IpamSettings, Pools, Range};

    use super::*;

    #[test]
    fn every_metric_is_documented_with_its_labels() {
        let document = include_str!("../../../docs/metrics.md");
        let rows = document.lines().filter(|line| line.starts_with("| `millrace_address_"));
        let documented: BTreeSet<(String, String)> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                (cells[1].trim_matches('`').to_owned(), cells[3].replace(['`', ' '], ""))
            })
            .collect();
        let exposition = ControllerRegistry::new();
        let range = Range::parse("192.0.2.0/30").unwrap();
        let ipam = Ipam::new(IpamSettings::default(), Pools::new(&[range]));
        exposition.metrics.set(Some(&ipam));
        let text = exposition.encode();
        let samples = text.lines().filter(|line| line.starts_with("millrace_address_"));
        let served: BTreeSet<(String, String)> = samples
            .map(|line| {
                let (sample, _) = line.rsplit_once(' ').unwrap();
                let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
                let keys = labels.trim_end_matches('}').split(',');
                let keys: Vec<&str> = keys.filter_map(|label| label.split('=').next()).collect();
                (name.to_owned(), keys.join(","))
            })
            .collect();
        assert_eq!(served, documented);
        let free = "millrace_address_pool_free_addresses{pool=\"load-balancer-addresses\",ip_family=\"IPv4\"} 4.0";
        assert!(text.contains(free), "{text}");
    }
}
