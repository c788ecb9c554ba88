//! The thread that exports spans.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lb_http::trace::RequestSpan;
use lb_limits::{Backoff, Rate, RateLimiter, apply_jitter};
use prost::Message;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::backlog::SpanBacklog;
use crate::collector::CollectorSettings;
use crate::connection::{CollectorConnection, ExportOutcome};
use crate::messages::{TracedProcess, export_request};
use crate::metrics::ExportMetrics;

/// What waits for the thread, which takes it at once while there is room. Further batches are dropped by the sender.
const MOST_QUEUED_BATCHES: usize = 64;
/// How often the same spans are sent.
const MOST_TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const WARNINGS: Rate = Rate::new(Duration::from_secs(60), 3);

#[derive(Debug)]
pub struct SpanExporter {
    ended: oneshot::Receiver<()>,
}

impl SpanExporter {
    /// Exports what is sent to the channel, until all senders are gone. An error says why there is no thread.
    pub fn start(
        collector: CollectorSettings,
        process: TracedProcess,
        metrics: ExportMetrics,
    ) -> io::Result<(Self, mpsc::Sender<Vec<RequestSpan>>)> {
        let (sender, queue) = mpsc::channel(MOST_QUEUED_BATCHES);
        let (end, ended) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let export = ExporterThread::new(collector, process, metrics);
        thread::Builder::new().name("spans".to_owned()).spawn(move || {
            runtime.block_on(export.run(queue));
            // A look-up of a name may still run.
            runtime.shutdown_background();
            let _ = end.send(());
        })?;
        Ok((Self { ended }, sender))
    }

    /// Waits until all is exported, when no sender is left.
    pub async fn finish(self, limit: Duration) {
        if timeout(limit, self.ended).await.is_err() {
            tracing::warn!("spans not exported before the end");
        }
    }
}

struct ExporterThread {
    url: String,
    connection: CollectorConnection,
    process: TracedProcess,
    metrics: ExportMetrics,
    backoff: Backoff,
    warnings: RateLimiter<Instant>,
    /// Since spans were accepted.
    has_warned: bool,
}

impl ExporterThread {
    fn new(collector: CollectorSettings, process: TracedProcess, metrics: ExportMetrics) -> Self {
        Self {
            url: collector.url.to_string(),
            connection: CollectorConnection::new(collector),
            process,
            metrics,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            warnings: RateLimiter::new(WARNINGS),
            has_warned: false,
        }
    }

    async fn run(mut self, queue: mpsc::Receiver<Vec<RequestSpan>>) {
        let mut backlog = SpanBacklog::new(queue);
        while let Some(spans) = backlog.collect_spans().await {
            backlog.fill_during(self.export_spans(&spans)).await;
        }
    }

    /// Sends the spans until the collector has taken or refused them, or too often.
    async fn export_spans(&mut self, spans: &[RequestSpan]) {
        let message = Bytes::from(export_request(&self.process, spans).encode_to_vec());
        for _ in 0..MOST_TRIES {
            match self.connection.export(message.clone()).await {
                ExportOutcome::Accepted { rejected } => {
                    let rejected = rejected.min(spans.len());
                    self.metrics.count_rejected(rejected);
                    self.metrics.count_accepted(spans.len() - rejected);
                    self.backoff.reset();
                    if rejected > 0 {
                        self.warn("the collector has rejected a part of them");
                    } else if std::mem::take(&mut self.has_warned) {
                        tracing::info!(collector = self.url, "spans are exported again");
                    }
                    return;
                }
                ExportOutcome::Refused(why) => {
                    self.metrics.count_rejected(spans.len());
                    return self.warn(&why);
                }
                ExportOutcome::Unavailable { why, pause } => {
                    self.warn(&why);
                    let whole = self.backoff.fail();
                    let random = getrandom::u32().unwrap_or(0);
                    sleep(pause.unwrap_or_else(|| apply_jitter(whole, whole / 2, random))).await;
                }
            }
        }
        self.metrics.count_failed(spans.len());
    }

    /// A collector cannot flood the log: there are as few other messages as warnings.
    fn warn(&mut self, error: &str) {
        if self.warnings.take(Instant::now()) {
            self.has_warned = true;
            tracing::warn!(collector = self.url, error, "cannot export spans");
        }
    }
}

#[cfg(test)]
mod tests;
