//! Metrics of the BGP speaker, from what the agent reports about itself.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Condition;
use lb_speakers::bgp::PeerView;

/// Reads the report at each scrape.
pub struct BgpMetrics(Arc<Condition>);

impl fmt::Debug for BgpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BgpMetrics")
    }
}

type BgpValue = fn(&PeerView) -> u64;

const GAUGES: [(&str, &str, BgpValue); 3] = [
    ("session_up", "Whether the session with the peer is established", |peer| {
        peer.is_established().into()
    }),
    ("prefixes_advertised", "Prefixes that the peer has", |peer| peer.prefixes_advertised as u64),
    ("draining", "Whether the peer is asked to prefer other nodes", |peer| peer.draining.into()),
];

const COUNTERS: [(&str, &str, BgpValue); 6] = [
    ("sessions_established", "How often the session was established", |peer| peer.established),
    ("sessions_ended", "How often an established session ended", |peer| peer.ended),
    ("messages_sent", "Messages that were sent to the peer", |peer| peer.messages_sent),
    ("messages_received", "Messages that the peer sent", |peer| peer.messages_received),
    ("prefixes_discarded", "Prefixes that the peer announced, which are not used", |peer| {
        peer.prefixes_discarded
    }),
    ("malformed_updates", "UPDATE messages of the peer that RFC 7606 calls malformed", |peer| {
        peer.malformed_updates
    }),
];

impl BgpMetrics {
    pub fn of(condition: &Arc<Condition>) -> Self {
        Self(Arc::clone(condition))
    }
}

impl Collector for BgpMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let view = self.0.bgp();
        for (name, help, value) in GAUGES {
            let name = format!("millrace_bgp_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for peer in &view.peers {
                let gauge = ConstGauge::new(value(peer));
                gauge.encode(family.encode_family(&[("peer", peer.name.as_str())])?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let name = format!("millrace_bgp_{name}");
            let mut family = to.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for peer in &view.peers {
                let counter = ConstCounter::new(value(peer));
                counter.encode(family.encode_family(&[("peer", peer.name.as_str())])?)?;
            }
        }
        Ok(())
    }
}
