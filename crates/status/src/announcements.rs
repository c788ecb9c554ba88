//! Metrics of announced addresses, from what the agent reports about itself.

use std::fmt;
use std::sync::Arc;

use lb_announce::LinkView;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Condition;

/// Reads the report at each scrape.
pub struct AnnouncementMetrics(Arc<Condition>);

impl fmt::Debug for AnnouncementMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnnouncementMetrics")
    }
}

type AnnouncementValue = fn(&LinkView) -> u64;

const GAUGES: [(&str, &str, AnnouncementValue); 5] = [
    ("held", "Addresses that this node announces", |link| {
        link.addresses.iter().filter(|address| address.is_here()).count() as u64
    }),
    ("without_holder", "Addresses with candidates that no node announces", |link| {
        link.addresses.iter().filter(|address| address.is_missing()).count() as u64
    }),
    (
        "in_use",
        "Addresses that another machine uses, and that are not announced for this reason",
        { |link| link.addresses.iter().filter(|address| address.blocked).count() as u64 },
    ),
    ("peers", "Other nodes whose heartbeats arrive", |link| {
        link.peers.iter().filter(|peer| !peer.silent).count() as u64
    }),
    ("peers_deaf", "Other nodes that do not hear this one", |link| {
        link.peers.iter().filter(|peer| !peer.silent && peer.deaf).count() as u64
    }),
];

const COUNTERS: [(&str, &str, AnnouncementValue); 6] = [
    ("taken", "Addresses that this node began to announce", |link| link.counts.taken),
    ("moved_as_planned", "Those of them that another node still announced", |link| {
        link.counts.planned
    }),
    ("conflicts", "Uses of addresses by other machines", |link| link.counts.conflicts),
    ("heartbeats_sent", "Heartbeats that were sent", |link| link.counts.sent),
    ("heartbeats_received", "Heartbeats that were received", |link| link.counts.received),
    ("heartbeats_refused", "Received heartbeats without a valid key, or malformed", |link| {
        link.counts.refused
    }),
];

impl AnnouncementMetrics {
    pub fn of(condition: &Arc<Condition>) -> Self {
        Self(Arc::clone(condition))
    }
}

impl Collector for AnnouncementMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let links = self.0.announcements().unwrap_or_default();
        for (name, help, value) in GAUGES {
            let name = format!("millrace_announcement_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for link in links.iter() {
                let gauge = ConstGauge::new(value(link));
                gauge.encode(family.encode_family(&[("interface", link.interface.as_str())])?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let name = format!("millrace_announcement_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for link in links.iter() {
                let counter = ConstCounter::new(value(link));
                counter.encode(family.encode_family(&[("interface", link.interface.as_str())])?)?;
            }
        }
        Ok(())
    }
}
