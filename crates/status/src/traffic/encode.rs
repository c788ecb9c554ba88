//! The counters as metrics.

use std::fmt;

use lb_common::layout::{self, Reason};
use lb_plan::BackendKey;
use lb_rules::model::{Protocol, ServicePortKey};
use lb_rules::reasons::explain_reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Traffic;

impl Collector for Traffic {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let reading = match self.read() {
            Ok(reading) => reading,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "counters not read");
                return Ok(());
            }
        };
        let labels = |reason: Reason| {
            [("reason", reason.name()), ("outcome", explain_reason(reason).fate.name())]
        };
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
            "Requests about load balancer addresses (ARP, neighbour discovery, ping), by event",
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
            let protocol = Protocol::of_number(key.protocol);
            [
                ("backend", key.to_string()),
                ("protocol", protocol.map_or("?", Protocol::name).to_owned()),
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
