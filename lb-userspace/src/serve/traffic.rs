//! The kernel's counters, read at each scrape.
//!
//! The traffic of a service port or backend is exported once there is some: a node sees few of a
//! large cluster's, and thousands of zeros are useless. There is a limit for each of the two kinds,
//! and the first that had traffic are exported. They stay exported as long as they exist, since a
//! series must not come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use lb_common::layout::{self, NeighbourEvent, Reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::model::ServicePortKey;
use crate::plan::BackendKey;
use crate::reasons::meaning;
use crate::settings::DEFAULT_METRICS_MAX_OBJECTS;

/// The index under which each service port is counted. Backends are read from the maps.
pub type Catalog = BTreeMap<ServicePortKey, u32>;

/// The kernel's counters. The agent implements it with the pinned maps.
pub trait Counters: Send {
    fn reasons(&self) -> Result<Vec<(Reason, u64)>>;
    fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>>;
    /// Zero for an index that no service port uses.
    fn service_port(&self, index: u32) -> Result<layout::Traffic>;
    /// Every backend and its index.
    fn backends(&self) -> Vec<(u32, BackendKey)>;
    fn backend(&self, index: u32) -> Result<layout::Traffic>;
    fn flow_tables(&self) -> Vec<FlowTable>;
}

/// How many flows the table of an address family holds, and its capacity.
pub struct FlowTable {
    pub family: &'static str,
    pub by_state: Vec<(&'static str, u64)>,
    pub capacity: u64,
}

type Open = Arc<dyn Fn() -> Result<Box<dyn Counters>> + Send + Sync>;

#[derive(Clone, Default)]
pub struct Traffic(Arc<Mutex<State>>);

struct State {
    catalog: Catalog,
    /// Limit for service ports, and for backends.
    most: usize,
    chosen_service_ports: Chosen<ServicePortKey>,
    chosen_backends: Chosen<BackendKey>,
    open: Option<Open>,
    /// Opened by the first scrape, and again after a failure.
    counters: Option<Box<dyn Counters>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            most: DEFAULT_METRICS_MAX_OBJECTS,
            chosen_service_ports: Chosen::default(),
            chosen_backends: Chosen::default(),
            open: None,
            counters: None,
        }
    }
}

/// The exported objects of one kind.
struct Chosen<K>(BTreeSet<K>);

impl<K> Default for Chosen<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Clone> Chosen<K> {
    /// Removes the objects above the limit from `counted`, and returns their number.
    fn choose(&mut self, counted: &mut Vec<(K, layout::Traffic)>, most: usize) -> u64 {
        let there: BTreeSet<&K> = counted.iter().map(|(key, _)| key).collect();
        self.0.retain(|key| there.contains(key));
        for (key, _) in counted.iter() {
            if self.0.len() >= most {
                break;
            }
            if !self.0.contains(key) {
                self.0.insert(key.clone());
            }
        }
        let all = counted.len();
        counted.retain(|(key, _)| self.0.contains(key));
        (all - counted.len()) as u64
    }
}

/// Everything that is read for one scrape.
#[derive(Default)]
struct Reading {
    reasons: Vec<(Reason, u64)>,
    neighbour_events: Vec<(NeighbourEvent, u64)>,
    service_ports: Vec<(ServicePortKey, layout::Traffic)>,
    backends: Vec<(BackendKey, layout::Traffic)>,
    flow_tables: Vec<FlowTable>,
    /// How many objects of each kind had traffic and are not exported.
    left_out: [(&'static str, u64); 2],
}

impl Traffic {
    /// Sets how to open the counters; without it there are none.
    pub fn read_from(&self, open: impl Fn() -> Result<Box<dyn Counters>> + Send + Sync + 'static) {
        let mut state = self.state();
        state.open = Some(Arc::new(open));
        state.counters = None;
    }

    pub fn catalogue(&self, change: impl FnOnce(&mut Catalog)) {
        change(&mut self.state().catalog);
    }

    pub fn limit_objects(&self, most: usize) {
        self.state().most = most;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Reading> {
        let (counters, service_ports) = {
            let mut state = self.state();
            let counters = match (state.counters.take(), &state.open) {
                (Some(counters), _) => counters,
                (None, Some(open)) => open()?,
                (None, None) => return Ok(Reading::default()),
            };
            // The lock is released before the system calls: the agent must not wait for them.
            (counters, state.catalog.clone())
        };
        let mut reading = Reading {
            reasons: counters.reasons()?,
            neighbour_events: counters.neighbour_events()?,
            flow_tables: counters.flow_tables(),
            ..Reading::default()
        };
        for (key, index) in service_ports {
            let traffic = counters.service_port(index)?;
            if traffic != layout::Traffic::default() {
                reading.service_ports.push((key, traffic));
            }
        }
        for (index, key) in counters.backends() {
            let traffic = counters.backend(index)?;
            if traffic != layout::Traffic::default() {
                reading.backends.push((key, traffic));
            }
        }
        let mut state = self.state();
        let most = state.most;
        let service_ports = state.chosen_service_ports.choose(&mut reading.service_ports, most);
        let backends = state.chosen_backends.choose(&mut reading.backends, most);
        reading.left_out = [("service_port", service_ports), ("backend", backends)];
        state.counters = Some(counters);
        Ok(reading)
    }
}

impl Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traffic")
    }
}

impl Collector for Traffic {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let reading = match self.read() {
            Ok(reading) => reading,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "counters not read");
                return Ok(());
            }
        };
        let labels =
            |reason: Reason| [("reason", reason.name()), ("outcome", meaning(reason).fate.name())];
        let counted = reading.reasons.iter().map(|(reason, count)| (labels(*reason), *count));
        counters(
            &mut encoder,
            "millrace_reason_packets",
            "Packets that looked like packets of Services and were not translated, by reason and outcome",
            counted,
        )?;
        let counted = reading.neighbour_events.iter();
        counters(
            &mut encoder,
            "millrace_neighbour_packets",
            "ARP and neighbour discovery packets about announced addresses, by event",
            counted.map(|(event, count)| ([("event", event.name())], *count)),
        )?;
        let labels = |key: &ServicePortKey| {
            [
                ("namespace", key.service.namespace.clone()),
                ("service", key.service.name.clone()),
                ("port", key.port.clone()),
                ("protocol", key.protocol.name().to_owned()),
                ("family", key.family.name().to_owned()),
            ]
        };
        let service_ports = reading.service_ports.iter();
        traffic(&mut encoder, "service", service_ports.map(|(key, t)| (labels(key), *t)))?;
        let labels = |key: &BackendKey| {
            let protocol = crate::model::Protocol::of_number(key.protocol);
            [
                ("backend", key.to_string()),
                ("protocol", protocol.map_or("?", crate::model::Protocol::name).to_owned()),
            ]
        };
        traffic(&mut encoder, "backend", reading.backends.iter().map(|(k, t)| (labels(k), *t)))?;
        let left_out = reading.left_out.iter().map(|(kind, count)| ([("kind", *kind)], *count));
        gauges(
            &mut encoder,
            "millrace_objects_omitted",
            "Service ports and backends without traffic metrics of their own, because there are too many",
            left_out,
        )?;
        let occupied = reading.flow_tables.iter().flat_map(|table| {
            let labels = |state| [("family", table.family), ("state", state)];
            table.by_state.iter().map(move |&(state, count)| (labels(state), count))
        });
        gauges(
            &mut encoder,
            "millrace_flow_table_entries",
            "Flows in the table by how far they are, estimated from a sample",
            occupied,
        )?;
        let tables = reading.flow_tables.iter();
        let capacities = tables.map(|table| ([("family", table.family)], table.capacity));
        gauges(
            &mut encoder,
            "millrace_flow_table_capacity",
            "Flows that fit in the table",
            capacities,
        )
    }
}

fn traffic<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    of: &str,
    counted: impl Iterator<Item = (L, layout::Traffic)> + Clone,
) -> fmt::Result {
    type Field = fn(&layout::Traffic) -> u64;
    let fields: [(&str, &str, Field); 5] = [
        ("forward_packets", "Packets to backends", |t| t.forward_packets),
        ("forward_bytes", "Bytes of packets to backends", |t| t.forward_bytes),
        ("reverse_packets", "Packets from backends", |t| t.reverse_packets),
        ("reverse_bytes", "Bytes of packets from backends", |t| t.reverse_bytes),
        ("new_flows", "Connections that were given to backends", |t| t.new_flows),
    ];
    for (name, help, field) in fields {
        let values = counted.clone().map(|(labels, traffic)| (labels, field(&traffic)));
        counters(encoder, &format!("millrace_{of}_{name}"), help, values)?;
    }
    Ok(())
}

fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, u64)>,
) -> fmt::Result {
    let values = values.map(|(labels, value)| (labels, ConstCounter::new(value)));
    family(encoder, name, help, MetricType::Counter, values)
}

fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, u64)>,
) -> fmt::Result {
    let values = values.map(|(labels, value)| (labels, ConstGauge::new(value as i64)));
    family(encoder, name, help, MetricType::Gauge, values)
}

fn family<L: EncodeLabelSet, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric_type: MetricType,
    values: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    let mut encoder: MetricEncoder<'_> =
        encoder.encode_descriptor(name, help, None, metric_type)?;
    for (labels, value) in values {
        value.encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use anyhow::ensure;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::model::{AddressFamily, Protocol, ServiceName};

    fn choose(chosen: &mut Chosen<u32>, counted: &[u32], most: usize) -> (Vec<u32>, u64) {
        let mut counted: Vec<_> =
            counted.iter().map(|&key| (key, layout::Traffic::default())).collect();
        let left_out = chosen.choose(&mut counted, most);
        (counted.into_iter().map(|(key, _)| key).collect(), left_out)
    }

    #[test]
    fn exported_objects_stay_exported_while_they_exist() {
        let mut chosen = Chosen::default();
        assert_eq!(choose(&mut chosen, &[3, 4], 2), (vec![3, 4], 0));
        assert_eq!(choose(&mut chosen, &[1, 2, 3, 4], 2), (vec![3, 4], 2));
        assert_eq!(choose(&mut chosen, &[1, 2, 4], 2), (vec![1, 4], 1), "3 is gone");
        assert_eq!(
            choose(&mut chosen, &[1, 2, 4], 0),
            (vec![1, 4], 1),
            "a lower limit removes none"
        );
        assert_eq!(choose(&mut Chosen::default(), &[1, 2], 0), (vec![], 2));
    }

    /// Counters of one service port and one backend; they can be read once, then they fail.
    struct Fake {
        readable: AtomicBool,
    }

    impl Counters for Fake {
        fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
            ensure!(self.readable.swap(false, Ordering::Relaxed), "the map is gone");
            Ok(vec![(Reason::NoBackend, 3)])
        }

        fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
            Ok(vec![(NeighbourEvent::Arp, 4)])
        }

        fn service_port(&self, index: u32) -> Result<layout::Traffic> {
            let forward_packets = if index == 7 { 11 } else { 0 };
            Ok(layout::Traffic { forward_packets, ..layout::Traffic::default() })
        }

        fn backends(&self) -> Vec<(u32, BackendKey)> {
            let key =
                |last| BackendKey { address: [10, 0, 0, last].into(), port: 8080, protocol: 6 };
            vec![(1, key(1)), (2, key(2))]
        }

        fn backend(&self, index: u32) -> Result<layout::Traffic> {
            let new_flows = if index == 2 { 5 } else { 0 };
            Ok(layout::Traffic { new_flows, ..layout::Traffic::default() })
        }

        fn flow_tables(&self) -> Vec<FlowTable> {
            vec![FlowTable { family: "IPv4", by_state: vec![("nascent", 2)], capacity: 64 }]
        }
    }

    fn encode(traffic: &Traffic) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(traffic.clone()));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn counters_are_exported_by_service_port_and_backend() {
        let traffic = Traffic::default();
        assert!(!encode(&traffic).contains("millrace_reason_packets_total{"), "there are none yet");
        traffic.read_from(|| Ok(Box::new(Fake { readable: true.into() })));
        traffic.catalogue(|catalog| {
            for (name, index) in [("web", 7), ("idle", 8)] {
                let key = ServicePortKey {
                    service: ServiceName::new("shop", name),
                    port: "http".to_owned(),
                    protocol: Protocol::Tcp,
                    family: AddressFamily::V4,
                };
                catalog.insert(key, index);
            }
        });
        let text = encode(&traffic);
        for line in [
            "millrace_reason_packets_total{reason=\"no_backend\",outcome=\"answered\"} 3",
            "millrace_neighbour_packets_total{event=\"arp_answered\"} 4",
            "millrace_service_forward_packets_total{namespace=\"shop\",service=\"web\",\
             port=\"http\",protocol=\"TCP\",family=\"IPv4\"} 11",
            "millrace_backend_new_flows_total{backend=\"10.0.0.2:8080\",protocol=\"TCP\"} 5",
            "millrace_flow_table_entries{family=\"IPv4\",state=\"nascent\"} 2",
            "millrace_flow_table_capacity{family=\"IPv4\"} 64",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        for without_traffic in ["idle", "10.0.0.1"] {
            assert!(!text.contains(without_traffic), "{without_traffic} is in\n{text}");
        }
    }

    #[test]
    fn counters_are_opened_again_after_they_could_not_be_read() {
        let opened = Arc::new(AtomicUsize::new(0));
        let traffic = Traffic::default();
        let count = Arc::clone(&opened);
        traffic.read_from(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Fake { readable: true.into() }))
        });
        let has_reasons = || encode(&traffic).contains("millrace_reason_packets_total{");
        assert_eq!([has_reasons(), has_reasons(), has_reasons()], [true, false, true]);
        assert_eq!(opened.load(Ordering::Relaxed), 2);
    }
}
