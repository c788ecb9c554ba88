//! Metrics of BFD sessions, from what the agent reports about itself.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::Condition;
use lb_speakers::bfd::BfdView;

/// Reads the report at each scrape.
pub struct BfdMetrics(Arc<Condition>);

impl fmt::Debug for BfdMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BfdMetrics")
    }
}

type BfdValue<T> = fn(&BfdView) -> T;

const GAUGES: [(&str, &str, Option<Unit>, BfdValue<f64>); 3] = [
    ("session_up", "Whether the path to the peer works, as far as BFD sees", None, |session| {
        session.is_up().into()
    }),
    ("in_kernel", "Whether the kernel answers the peer, without the agent", None, |session| {
        session.in_kernel.into()
    }),
    (
        "detection_time",
        "The path is broken after this time without a packet",
        Some(Unit::Seconds),
        |session| session.detection_time_ms as f64 / 1e3,
    ),
];

const COUNTERS: [(&str, &str, BfdValue<u64>); 2] = [
    ("sessions_up", "How often the session came up", |session| session.ups),
    ("sessions_down", "How often the session went down", |session| session.downs),
];

impl BfdMetrics {
    pub fn of(condition: &Arc<Condition>) -> Self {
        Self(Arc::clone(condition))
    }
}

impl Collector for BfdMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let view = self.0.bgp();
        for (name, help, unit, value) in &GAUGES {
            let name = format!("millrace_bfd_{name}");
            let mut family = to.encode_descriptor(&name, help, unit.as_ref(), MetricType::Gauge)?;
            for session in &view.bfd {
                let gauge = ConstGauge::new(value(session));
                gauge.encode(family.encode_family(&[("peer", session.name.as_str())])?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let name = format!("millrace_bfd_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for session in &view.bfd {
                let counter = ConstCounter::new(value(session));
                counter.encode(family.encode_family(&[("peer", session.name.as_str())])?)?;
            }
        }
        let refused = ConstCounter::new(view.bfd_packets_refused);
        let help = "Packets to the ports of BFD that belong to no session";
        let name = "millrace_bfd_packets_refused";
        refused.encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}
