//! Spans of requests, on their way from a worker to the thread that exports them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use lb_http::trace::{RequestSpan, SpanRates};

use crate::metrics::{DroppedSpan, WorkerCounters};
use crate::settings::TraceSettings;

/// Spans that are sent at once. The channel counts batches, so this bounds what waits in it.
const BATCH: usize = 16;

/// The spans of one worker.
pub(crate) struct WorkerSpans {
    settings: TraceSettings,
    counters: Arc<WorkerCounters>,
    rates: RefCell<SpanRates>,
    batch: RefCell<Vec<RequestSpan>>,
}

impl WorkerSpans {
    /// `workers`: how many share what the settings allow.
    pub fn new(settings: TraceSettings, workers: usize, counters: Arc<WorkerCounters>) -> Self {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let rates = SpanRates::new(settings.most_per_second, workers);
        Self { settings, counters, rates: rates.into(), batch: RefCell::default() }
    }

    pub fn settings(&self) -> &TraceSettings {
        &self.settings
    }

    /// Whether another request of the namespace is recorded; it is counted.
    pub fn admit(&self, namespace: &Arc<str>, now: Instant) -> bool {
        let is_admitted = self.rates.borrow_mut().admit(namespace, now);
        if !is_admitted {
            self.counters.spans_dropped.count(DroppedSpan::Rate);
        }
        is_admitted
    }

    pub fn push(&self, span: RequestSpan) {
        let mut batch = self.batch.borrow_mut();
        batch.push(span);
        if batch.len() >= BATCH {
            self.send(&mut batch);
        }
    }

    /// Sends what has been collected.
    pub fn flush(&self) {
        self.send(&mut self.batch.borrow_mut());
    }

    fn send(&self, batch: &mut Vec<RequestSpan>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        if self.settings.spans.try_send(std::mem::take(batch)).is_err() {
            self.counters.spans_dropped.count_many(DroppedSpan::Queue, count);
        }
    }

    pub fn tend(&self, now: Instant) {
        self.rates.borrow_mut().forget_unused(now);
    }
}
