//! What became of spans.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Counts requests whose spans were exported. Clones are of the same numbers.
#[derive(Clone, Debug, Default)]
pub struct ExportMetrics(Arc<ExportCounts>);

#[derive(Debug, Default)]
struct ExportCounts {
    accepted: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
}

impl ExportMetrics {
    /// Adds the metrics to a registry. Their names have no prefix: that is the registry's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    pub(crate) fn count_accepted(&self, amount: usize) {
        self.0.accepted.fetch_add(amount as u64, Ordering::Relaxed);
    }

    /// The collector does not want them.
    pub(crate) fn count_rejected(&self, amount: usize) {
        self.0.rejected.fetch_add(amount as u64, Ordering::Relaxed);
    }

    /// The collector could not be reached, or took none.
    pub(crate) fn count_failed(&self, amount: usize) {
        self.0.failed.fetch_add(amount as u64, Ordering::Relaxed);
    }

    fn results(&self) -> [(&'static str, u64); 3] {
        let ExportCounts { accepted, rejected, failed } = &*self.0;
        [("accepted", accepted), ("rejected", rejected), ("failed", failed)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> [u64; 3] {
        self.results().map(|(_, count)| count)
    }
}

impl Collector for ExportMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests whose spans were sent to the collector, by what became of them";
        let mut metric = to.encode_descriptor("spans_exported", help, None, MetricType::Counter)?;
        for (result, count) in self.results() {
            metric
                .encode_family(&[("result", result)])?
                .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
        Ok(())
    }
}
