//! Spans that wait for the collector.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use lb_http::trace::RequestSpan;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Spans of a request to the collector.
const MOST_SPANS: usize = 512;
/// How long a request waits for further spans.
const COLLECTION_TIME: Duration = Duration::from_secs(1);
/// What waits beside the channel, before the channel fills: at least 2,000 spans, mostly 10,000.
pub(super) const MOST_WAITING_OCTETS: usize = 8 << 20;

/// Takes spans from the channel at once, also while the collector hangs: batches of few spans would fill it, whatever
/// their size.
pub(crate) struct SpanBacklog {
    channel: mpsc::Receiver<Vec<RequestSpan>>,
    waiting: VecDeque<RequestSpan>,
    /// Of those that wait.
    octets: usize,
}

impl SpanBacklog {
    pub fn new(channel: mpsc::Receiver<Vec<RequestSpan>>) -> Self {
        Self { channel, waiting: VecDeque::new(), octets: 0 }
    }

    /// Spans for one request to the collector. `None`: there will be none.
    pub async fn collect_spans(&mut self) -> Option<Vec<RequestSpan>> {
        if self.waiting.is_empty() {
            let spans = self.channel.recv().await?;
            self.keep(spans);
        }
        let deadline = Instant::now() + COLLECTION_TIME;
        while self.waiting.len() < MOST_SPANS
            && let Ok(Some(spans)) = timeout_at(deadline, self.channel.recv()).await
        {
            self.keep(spans);
        }
        let spans: Vec<_> = self.waiting.drain(..self.waiting.len().min(MOST_SPANS)).collect();
        self.octets -= spans.iter().map(RequestSpan::octets).sum::<usize>();
        if self.waiting.is_empty() {
            self.waiting.shrink_to(MOST_SPANS);
        }
        Some(spans)
    }

    /// Takes spans from the channel until the work is done, as long as there is room.
    pub async fn fill_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(spans) = self.channel.recv(), if self.octets < MOST_WAITING_OCTETS => {
                    self.keep(spans);
                }
            }
        }
    }

    fn keep(&mut self, spans: Vec<RequestSpan>) {
        self.octets += spans.iter().map(RequestSpan::octets).sum::<usize>();
        self.waiting.extend(spans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::tests::request_span;

    #[tokio::test]
    async fn requests_have_a_bounded_number_of_spans() {
        let (sender, channel) = mpsc::channel(10);
        let mut backlog = SpanBacklog::new(channel);
        for _ in 0..10 {
            sender.send(vec![request_span(); 100]).await.unwrap();
        }
        drop(sender);
        assert_eq!(backlog.collect_spans().await.unwrap().len(), MOST_SPANS);
        assert_eq!(backlog.collect_spans().await.unwrap().len(), 1000 - MOST_SPANS);
        assert_eq!((backlog.collect_spans().await, backlog.octets), (None, 0));
    }

    /// While a collector hangs. Batches count as little as their spans are.
    #[tokio::test]
    async fn what_waits_is_bounded_by_its_octets() {
        let long = RequestSpan { path: "a".repeat(100_000), ..request_span() };
        for span in [request_span(), long] {
            let (sender, channel) = mpsc::channel(1);
            let mut backlog = SpanBacklog::new(channel);
            let fitting = MOST_WAITING_OCTETS.div_ceil(span.octets());
            let work = async {
                // One more is in the channel.
                for _ in 0..=fitting {
                    sender.send(vec![span.clone()]).await.unwrap();
                }
                for _ in 0..1_000 {
                    tokio::task::yield_now().await;
                }
                sender.try_send(vec![span.clone()]).is_err()
            };
            assert!(backlog.fill_during(work).await, "more than {fitting} are taken");
            assert_eq!((backlog.waiting.len(), backlog.octets), (fitting, fitting * span.octets()));
        }
    }
}
