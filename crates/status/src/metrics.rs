//! The agent's metrics. Those named `kubeproxy_…` have the names that existing alerts use.

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use lb_process::{ClientRequests, process_registry};
use lb_rules::model::AddressFamily;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::traffic::{Catalog, Counters, Traffic};

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Labelled<M> = Family<Labels<1>, M>;
type ByFamily = Family<Labels<1>, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

/// How much of the maps is in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub frontends: usize,
    pub service_ports: usize,
    pub backends: usize,
    pub pool_slots: u32,
    pub members: usize,
    pub source_ranges: usize,
    pub targets: usize,
    pub peers: usize,
    pub earlier_owners: usize,
}

pub struct Metrics {
    /// Most metrics are registered by `new`.
    registry: Mutex<Registry>,
    traffic: Traffic,
    requests: ClientRequests,
    healthz: Labelled<Counter>,
    livez: Labelled<Counter>,
    sync_duration: ByFamily,
    sync_last: Labelled<Seconds>,
    sync_last_queued: Labelled<Seconds>,
    changes: [Counter; 2],
    pending: [Gauge; 2],
    no_local_endpoints: Family<Labels<2>, Gauge>,
    programming: ByFamily,
    entries: Labelled<Gauge<i64, AtomicI64>>,
    capacities: Labelled<Gauge>,
    write_failures: Counter,
    steps: Counter,
    table_checksum: Gauge,
    lacking: Gauge,
    set_aside: Labelled<Gauge>,
    problems: Gauge,
    programs: Labelled<Gauge>,
    devices_not_served: Gauge,
    snat_ports: Gauge,
    tunnel_nodes: Labelled<Gauge>,
    watched_nodes: Labelled<Gauge>,
    config: Family<Vec<(&'static str, String)>, Gauge>,
}

/// Which kind of object changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Service = 0,
    Endpoints = 1,
}

/// As written in names of metrics, and in their help texts.
const KINDS: [(&str, &str); 2] = [("service", "Services"), ("endpoint", "endpoints")];

impl Metrics {
    pub fn new() -> Self {
        let mut registry = process_registry();
        let sync = "kubeproxy_sync_proxy_rules";
        let mut metrics = Self {
            healthz: register(&mut registry, "kubeproxy_proxy_healthz", "Responses of /healthz"),
            livez: register(&mut registry, "kubeproxy_proxy_livez", "Responses of /livez"),
            sync_duration: with(
                &mut registry,
                &format!("{sync}_duration_seconds"),
                "How long it took to program changes",
                Family::new_with_constructor(|| Histogram::new(sync_buckets())),
            ),
            sync_last: register(
                &mut registry,
                &format!("{sync}_last_timestamp_seconds"),
                "When changes were last programmed",
            ),
            sync_last_queued: register(
                &mut registry,
                &format!("{sync}_last_queued_timestamp_seconds"),
                "When changes were last taken in",
            ),
            changes: KINDS.map(|(kind, objects)| {
                let help = format!("Changes of {objects} that were taken in");
                register(&mut registry, &format!("{sync}_{kind}_changes"), &help)
            }),
            pending: KINDS.map(|(kind, objects)| {
                let help = format!("Changes of {objects} that are not programmed yet");
                register(&mut registry, &format!("{sync}_{kind}_changes_pending"), &help)
            }),
            no_local_endpoints: register(
                &mut registry,
                &format!("{sync}_no_local_endpoints_total"),
                "Service ports of a Local traffic policy without an endpoint on this node",
            ),
            programming: with(
                &mut registry,
                "kubeproxy_network_programming_duration_seconds",
                "From a change of endpoints in the cluster until it is programmed here",
                Family::new_with_constructor(|| Histogram::new(programming_buckets())),
            ),
            entries: register(&mut registry, "millrace_map_entries", "Entries of maps in use"),
            capacities: register(
                &mut registry,
                "millrace_map_capacity",
                "Entries that maps have room for",
            ),
            write_failures: register(
                &mut registry,
                "millrace_map_write_failures",
                "Writes of maps that failed; each is tried again",
            ),
            steps: register(
                &mut registry,
                "millrace_map_steps",
                "Changes of the maps that were carried out since the agent started",
            ),
            table_checksum: register(
                &mut registry,
                "millrace_table_checksum",
                "Checksum of the Maglev tables; nodes that know the same endpoints have the same",
            ),
            lacking: register(
                &mut registry,
                "millrace_services_without_room",
                "Services of which something does not fit into the maps",
            ),
            set_aside: register(
                &mut registry,
                "millrace_map_entries_without_room",
                "Entries that do not fit into their map; each is tried again",
            ),
            problems: register(
                &mut registry,
                "millrace_services_with_problems",
                "Services of which something is not served because it breaks a rule",
            ),
            programs: register(
                &mut registry,
                "millrace_attached_programs",
                "Programs that are attached to devices, by the hook they are attached to",
            ),
            devices_not_served: register(
                &mut registry,
                "millrace_devices_not_served",
                "Devices that should be served and can't be",
            ),
            snat_ports: register(
                &mut registry,
                "millrace_snat_ports_available",
                "Ports that are left for SNAT to backends on other nodes",
            ),
            tunnel_nodes: register(
                &mut registry,
                "millrace_tunnel_nodes",
                "Other nodes by whether they take packets out of tunnels, as probes show",
            ),
            watched_nodes: register(
                &mut registry,
                "millrace_watched_nodes",
                "Other nodes that are watched for failure",
            ),
            config: register(
                &mut registry,
                "millrace_config_info",
                "How the agent is configured; always 1",
            ),
            traffic: Traffic::default(),
            requests: ClientRequests::default(),
            registry: Mutex::default(),
        };
        metrics.requests.register(&mut registry);
        registry.register_collector(Box::new(metrics.traffic.clone()));
        metrics.registry = registry.into();
        metrics.set_watched_nodes(0, 0);
        for family in AddressFamily::ALL.map(ip_family) {
            drop(metrics.sync_duration.get_or_create(&family));
            drop(metrics.sync_last.get_or_create(&family));
            drop(metrics.sync_last_queued.get_or_create(&family));
            drop(metrics.programming.get_or_create(&family));
        }
        metrics
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only if a metric does, and metrics that cannot be read are left
        // out instead.
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// Includes metrics of other work of this process.
    pub fn add(&self, metrics: impl Collector) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register_collector(Box::new(metrics));
    }

    pub fn set_capacities(&self, capacities: impl IntoIterator<Item = (&'static str, u32)>) {
        for (map, capacity) in capacities {
            self.capacities.get_or_create(&[("map", map)]).set(capacity.into());
        }
    }

    /// For code that creates clients of the API server.
    pub fn requests(&self) -> &ClientRequests {
        &self.requests
    }

    /// Settings by which nodes are compared. Set once: they do not change while the agent runs.
    pub fn set_config(&self, config: Vec<(&'static str, String)>) {
        self.config.get_or_create(&config).set(1);
    }

    pub fn set_snat_ports(&self, available: u32) {
        self.snat_ports.set(available.into());
    }

    pub fn set_tunnel_nodes(&self, decapsulating: usize, silent: usize) {
        for (state, count) in [("decapsulates", decapsulating), ("silent", silent)] {
            self.tunnel_nodes.get_or_create(&[("state", state)]).set(count as i64);
        }
    }

    pub fn set_watched_nodes(&self, alive: usize, dead: usize) {
        for (state, count) in [("alive", alive), ("dead", dead)] {
            self.watched_nodes.get_or_create(&[("state", state)]).set(count as i64);
        }
    }

    /// The hook of each attached program, so that names repeat.
    pub fn set_attached(&self, hooks: impl IntoIterator<Item = &'static str>, not_served: usize) {
        self.programs.clear();
        for hook in hooks {
            self.programs.get_or_create(&[("hook", hook)]).inc();
        }
        self.devices_not_served.set(not_served as i64);
    }

    /// Sets how to open the kernel's counters. They are opened at the first scrape.
    pub fn read_traffic_from(
        &self,
        open: impl Fn() -> Result<Box<dyn Counters>> + Send + Sync + 'static,
    ) {
        self.traffic.read_from(open);
    }

    /// Limits the number of service ports, and of backends, whose traffic is exported.
    pub fn set_max_objects(&self, most: usize) {
        self.traffic.limit_objects(most);
    }

    /// Changes the names and indexes of the kernel's counters.
    pub fn catalogue(&self, change: impl FnOnce(&mut Catalog)) {
        self.traffic.catalogue(change);
    }

    pub(crate) fn count_healthz(&self, healthy: bool) {
        self.healthz.get_or_create(&code(healthy)).inc();
    }

    pub(crate) fn count_livez(&self, healthy: bool) {
        self.livez.get_or_create(&code(healthy)).inc();
    }

    /// An object has changed.
    pub fn changed(&self, what: Changed, now: SystemTime) {
        self.changes[what as usize].inc();
        self.pending[what as usize].inc();
        for family in AddressFamily::ALL.map(ip_family) {
            self.sync_last_queued.get_or_create(&family).set(seconds(now));
        }
    }

    /// All changes are programmed. Each change programs both families, as in kube-proxy.
    pub fn record_programmed(&self, took: Duration, now: SystemTime) {
        for family in AddressFamily::ALL.map(ip_family) {
            self.sync_duration.get_or_create(&family).observe(took.as_secs_f64());
            self.sync_last.get_or_create(&family).set(seconds(now));
        }
        for pending in &self.pending {
            pending.set(0);
        }
    }

    /// A change of endpoints in the cluster was programmed this long after it happened.
    pub fn programmed(&self, family: AddressFamily, after: Duration) {
        self.programming.get_or_create(&ip_family(family)).observe(after.as_secs_f64());
    }

    /// How many steps have been executed so far.
    pub fn set_steps(&self, steps: u64) {
        self.steps.inc_by(steps - self.steps.get());
    }

    pub fn write_failed(&self) {
        self.write_failures.inc();
    }

    pub fn set_usage(&self, usage: Usage) {
        let set = |map, entries| {
            self.entries.get_or_create(&[("map", map)]).set(entries);
        };
        set("frontends", usage.frontends as i64);
        set("service_ports", usage.service_ports as i64);
        set("backends", usage.backends as i64);
        set("pool_slots", usage.pool_slots.into());
        set("members", usage.members as i64);
        set("source_ranges", usage.source_ranges as i64);
        set("targets", usage.targets as i64);
        set("peers", usage.peers as i64);
        set("earlier_owners", usage.earlier_owners as i64);
    }

    /// Exports 52 bits of the checksum: Prometheus cannot store more exactly.
    pub fn set_table_checksum(&self, checksum: u64) {
        self.table_checksum.set((checksum >> 12) as i64);
    }

    pub fn set_without_room(&self, services: usize, entries: &[(&'static str, usize)]) {
        self.lacking.set(services as i64);
        for &(map, count) in entries {
            self.set_aside.get_or_create(&[("map", map)]).set(count as i64);
        }
    }

    pub fn set_problems(&self, services: usize) {
        self.problems.set(services as i64);
    }

    pub fn set_no_local_endpoints(&self, family: AddressFamily, internal: usize, external: usize) {
        for (policy, count) in [("internal", internal), ("external", external)] {
            let labels = [("traffic_policy", policy), ("ip_family", family.name())];
            self.no_local_endpoints.get_or_create(&labels).set(count as i64);
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn register<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: prometheus_client::registry::Metric + Clone + Default,
{
    with(registry, name, help, M::default())
}

fn with<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
where
    M: prometheus_client::registry::Metric + Clone,
{
    registry.register(name, help, metric.clone());
    metric
}

fn ip_family(family: AddressFamily) -> Labels<1> {
    [("ip_family", family.name())]
}

fn code(healthy: bool) -> Labels<1> {
    [("code", if healthy { "200" } else { "503" })]
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// From 62.5 microseconds to half a minute. kube-proxy's buckets, which begin at a millisecond, are
/// among them.
fn sync_buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.000_062_5, 2.0, 20)
}

/// kube-proxy's buckets, and finer ones below: it takes seconds for what takes milliseconds here.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let fine = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5].into_iter();
    let seconds = (1..60).map(f64::from);
    let longer = (60..120).step_by(5).chain((120..=300).step_by(30)).map(f64::from);
    fine.chain(seconds).chain(longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dashboards and alerts made for kube-proxy query these buckets.
    #[test]
    fn all_buckets_of_kube_proxy_are_included() {
        let sync: Vec<f64> = sync_buckets().collect();
        for bucket in exponential_buckets(0.001, 2.0, 15) {
            assert!(sync.contains(&bucket), "{bucket} is not in {sync:?}");
        }
        let programming: Vec<f64> = programming_buckets().collect();
        let first = [0.25, 0.5].into_iter().chain((1..60).map(f64::from));
        let rest = (60..=115).step_by(5).chain((120..=300).step_by(30)).map(f64::from);
        for bucket in first.chain(rest) {
            assert!(programming.contains(&bucket), "{bucket} is not in {programming:?}");
        }
        assert!(programming.is_sorted());
    }
}
