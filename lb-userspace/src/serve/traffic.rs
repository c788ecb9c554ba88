//! What the kernel counts, read when somebody asks.
//!
//! Service ports and backends are told once they have had traffic: a node meets few of a large
//! cluster's, and thousands of zeros help nobody.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use lb_common::layout;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::kernel::{Occupancy, Tables};
use crate::model::ServicePortKey;
use crate::plan::BackendKey;

/// What is counted under which index.
#[derive(Debug, Default)]
pub struct Catalog {
    pub service_ports: BTreeMap<ServicePortKey, u32>,
    /// By index.
    pub backends: HashMap<u32, BackendKey>,
}

#[derive(Clone, Default)]
pub struct Traffic(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    catalog: Catalog,
    pin_path: Option<PathBuf>,
    /// Opened when first asked for.
    tables: Option<Tables>,
}

/// Everything that is read for one answer.
#[derive(Default)]
struct Reading {
    reasons: Vec<(&'static str, u64)>,
    service_ports: Vec<(ServicePortKey, layout::Traffic)>,
    backends: Vec<(BackendKey, layout::Traffic)>,
    flows: Vec<(&'static str, Occupancy)>,
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Reading> {
        let (tables, service_ports, backends) = {
            let mut state = self.state();
            let tables = match (state.tables.take(), &state.pin_path) {
                (Some(tables), _) => tables,
                (None, Some(path)) => Tables::open(|name| path.join(name))?,
                (None, None) => return Ok(Reading::default()),
            };
            let Catalog { service_ports, backends } = &state.catalog;
            // The agent must not wait for system calls of ours.
            (tables, service_ports.clone(), backends.clone())
        };
        let mut reading = Reading {
            reasons: tables.reasons()?.into_iter().map(|(r, count)| (r.name(), count)).collect(),
            flows: vec![("IPv4", tables.occupancy4()), ("IPv6", tables.occupancy6())],
            ..Reading::default()
        };
        for (key, index) in service_ports {
            let traffic = tables.service_traffic(index)?;
            if traffic != layout::Traffic::default() {
                reading.service_ports.push((key, traffic));
            }
        }
        for (index, key) in backends {
            let traffic = tables.backend_traffic(index)?;
            if traffic != layout::Traffic::default() {
                reading.backends.push((key, traffic));
            }
        }
        self.state().tables = Some(tables);
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
        let counted = reading.reasons.iter().map(|(reason, count)| ([("reason", *reason)], *count));
        counters(
            &mut encoder,
            "millrace_reason_packets",
            "Packets that were dropped, or passed though they looked like ours, by reason",
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
        let occupied = reading.flows.iter().map(|(family, o)| ([("family", *family)], o.occupied));
        gauges(
            &mut encoder,
            "millrace_flow_table_entries",
            "Flows in the table, estimated from a sample",
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
