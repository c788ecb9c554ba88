//! What the kernel counts, read when somebody asks.
//!
//! Service ports and backends are told once they have had traffic: a node meets few of a large
//! cluster's, and thousands of zeros help nobody. Of each kind only so many are told, the first
//! that had traffic; they are told as long as they exist, since a series must not come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use lb_common::layout::{self, Reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::kernel::{Occupancy, Tables};
use crate::model::ServicePortKey;
use crate::plan::{BackendKey, FoundBackend};
use crate::reasons::meaning;

/// Under which index each service port is counted. Backends are known by their tables.
pub type Catalog = BTreeMap<ServicePortKey, u32>;

/// What `--metrics-max-objects` is unless it is given.
pub const MOST_OBJECTS: usize = 2_000;

#[derive(Clone, Default)]
pub struct Traffic(Arc<Mutex<State>>);

struct State {
    catalog: Catalog,
    /// So many service ports, and so many backends.
    most: usize,
    told_service_ports: Told<ServicePortKey>,
    told_backends: Told<BackendKey>,
    pin_path: Option<PathBuf>,
    /// Opened when first asked for.
    tables: Option<Tables>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            most: MOST_OBJECTS,
            told_service_ports: Told::default(),
            told_backends: Told::default(),
            pin_path: None,
            tables: None,
        }
    }
}

/// Those of one kind that are told.
struct Told<K>(BTreeSet<K>);

impl<K> Default for Told<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Clone> Told<K> {
    /// Takes out what is too much, and says how many that were.
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

/// Everything that is read for one answer.
#[derive(Default)]
struct Reading {
    reasons: Vec<(Reason, u64)>,
    service_ports: Vec<(ServicePortKey, layout::Traffic)>,
    backends: Vec<(BackendKey, layout::Traffic)>,
    flows: Vec<(&'static str, Occupancy)>,
    /// How many of a kind had traffic, and are not told.
    untold: [(&'static str, u64); 2],
}

impl Traffic {
    pub fn read_at(&self, pin_path: &Path) {
        let mut state = self.state();
        state.pin_path = Some(pin_path.to_owned());
        state.tables = None;
    }

    pub fn catalogue(&self, change: impl FnOnce(&mut Catalog)) {
        change(&mut self.state().catalog);
    }

    pub fn tell_at_most(&self, most: usize) {
        self.state().most = most;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Reading> {
        let (tables, service_ports) = {
            let mut state = self.state();
            let tables = match (state.tables.take(), &state.pin_path) {
                (Some(tables), _) => tables,
                (None, Some(path)) => Tables::open(|name| path.join(name))?,
                (None, None) => return Ok(Reading::default()),
            };
            // The agent must not wait for system calls of ours.
            (tables, state.catalog.clone())
        };
        let mut reading = Reading {
            reasons: tables.reasons()?,
            flows: vec![("IPv4", tables.occupancy4()), ("IPv6", tables.occupancy6())],
            ..Reading::default()
        };
        for (key, index) in service_ports {
            let traffic = tables.service_traffic(index)?;
            if traffic != layout::Traffic::default() {
                reading.service_ports.push((key, traffic));
            }
        }
        for FoundBackend { index, backend, .. } in tables.backends() {
            let Some((key, _)) = backend else { continue };
            let traffic = tables.backend_traffic(index)?;
            if traffic != layout::Traffic::default() {
                reading.backends.push((key, traffic));
            }
        }
        let mut state = self.state();
        let most = state.most;
        let service_ports = state.told_service_ports.choose(&mut reading.service_ports, most);
        let backends = state.told_backends.choose(&mut reading.backends, most);
        reading.untold = [("service_port", service_ports), ("backend", backends)];
        state.tables = Some(tables);
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
                tracing::warn!("the kernel's counters can't be read: {error:#}");
                return Ok(());
            }
        };
        let labels =
            |reason: Reason| [("reason", reason.name()), ("outcome", meaning(reason).fate.name())];
        let counted = reading.reasons.iter().map(|(reason, count)| (labels(*reason), *count));
        counters(
            &mut encoder,
            "millrace_reason_packets",
            "Packets that looked like ours and were not translated, by reason, and what became of them",
            counted,
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
        let untold = reading.untold.iter().map(|(kind, count)| ([("kind", *kind)], *count));
        gauges(
            &mut encoder,
            "millrace_objects_not_told",
            "Service ports and backends whose traffic is not told one by one: there are too many",
            untold,
        )?;
        let occupied = reading.flows.iter().flat_map(|(family, occupancy)| {
            let labels = |state| [("family", *family), ("state", state)];
            occupancy.by_state().into_iter().map(move |(state, count)| (labels(state), count))
        });
        gauges(
            &mut encoder,
            "millrace_flow_table_entries",
            "Flows in the table by how far they are, estimated from a sample",
            occupied,
        )?;
        let places = reading.flows.iter().map(|(family, o)| ([("family", *family)], o.places));
        gauges(&mut encoder, "millrace_flow_table_capacity", "Flows that fit in the table", places)
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
    use super::*;

    fn choose(told: &mut Told<u32>, counted: &[u32], most: usize) -> (Vec<u32>, u64) {
        let mut counted: Vec<_> =
            counted.iter().map(|&key| (key, layout::Traffic::default())).collect();
        let untold = told.choose(&mut counted, most);
        (counted.into_iter().map(|(key, _)| key).collect(), untold)
    }

    #[test]
    fn what_is_told_stays_told_while_it_exists() {
        let mut told = Told::default();
        assert_eq!(choose(&mut told, &[3, 4], 2), (vec![3, 4], 0));
        assert_eq!(choose(&mut told, &[1, 2, 3, 4], 2), (vec![3, 4], 2));
        assert_eq!(choose(&mut told, &[1, 2, 4], 2), (vec![1, 4], 1), "3 is gone");
        assert_eq!(choose(&mut told, &[1, 2, 4], 0), (vec![1, 4], 1), "the limit moves nobody");
        assert_eq!(choose(&mut Told::default(), &[1, 2], 0), (vec![], 2));
    }
}
