//! Exports spans of requests, on a thread of its own: a collector that is slow delays no request.

use std::io;

use lb_otlp::{ExportMetrics, SpanExporter, TracedProcess};
use lb_proxy::TraceSettings;
use lb_source::lease;

use super::config::TracingOptions;

/// `None`: no request is traced.
pub(crate) fn start_exporter(
    options: Option<TracingOptions>,
    metrics: ExportMetrics,
) -> io::Result<Option<(SpanExporter, TraceSettings)>> {
    let Some(options) = options else { return Ok(None) };
    let TracingOptions { collector, service_name, by_default, ratio, most_per_second } = options;
    let process = TracedProcess {
        service: service_name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: lease::host_name(),
    };
    tracing::info!(collector = %collector.url, %ratio, "exporting spans");
    let (exporter, spans) = SpanExporter::start(collector, process, metrics)?;
    Ok(Some((exporter, TraceSettings { by_default, ratio, most_per_second, spans })))
}
