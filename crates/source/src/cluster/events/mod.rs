//! Notices as Events on the objects, where `kubectl describe` shows them.
//!
//! An Event's name is derived from its text, so that all nodes with the same notice try to create
//! the same Event, and the server rejects all but one. Repetitions raise the Event's count, as in
//! Kubernetes' own components, but only from the node that created it: otherwise a thousand nodes
//! would write a thousand times. Events are few, and undeliverable ones are dropped: the log
//! contains them.

mod object;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use json_patch::Patch as Operations;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lb_limits::{Rate, RateLimiter};
use lb_process::notices::{Notice, NoticeLog, Notices};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use object::event;
use waiting::Waiting;

/// Events that are sent: 25 at once, and then one each 10 s.
const EVENT_RATE: Rate = Rate::new(Duration::from_secs(10), 25);
/// Maximum number of waiting notices.
const QUEUE: usize = 256;
/// Maximum number of remembered Events that were created here; others are looked up.
const REMEMBERED: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends notices to the log and to the cluster.
pub struct Events {
    log: NoticeLog,
    queue: mpsc::Sender<Notice>,
}

impl Events {
    pub fn new(client: Client, node_name: &str) -> Self {
        let (queue, notices) = mpsc::channel(QUEUE);
        let recorder =
            Recorder { client, node_name: node_name.to_owned(), made: BTreeMap::default() };
        tokio::spawn(deliver(recorder, notices));
        Self { log: NoticeLog::default(), queue }
    }
}

impl Notices for Events {
    fn post(&self, notice: Notice) {
        self.log.post(notice.clone());
        if notice.about.is_none() {
            return;
        }
        // Half of the room is for Warnings: thousands of addresses may move at once.
        let has_room = notice.reason.event_type() == "Warning" || self.queue.capacity() > QUEUE / 2;
        if !has_room || self.queue.try_send(notice).is_err() {
            tracing::debug!("queue of notices full; event not created");
        }
    }
}

/// Delivers one notice after the other; repetitions of waiting ones are counted.
async fn deliver(mut recorder: Recorder, mut notices: mpsc::Receiver<Notice>) {
    let mut rate = RateLimiter::new(EVENT_RATE);
    let mut waiting = Waiting::new(QUEUE);
    let mut is_open = true;
    while is_open || !waiting.is_empty() {
        if waiting.is_empty() {
            match notices.recv().await {
                Some(notice) => recorder.take_in(&notice, &mut waiting),
                None => break,
            }
            continue;
        }
        let turn = sleep_until(rate.reserve(Instant::now()));
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                notice = notices.recv(), if is_open => match notice {
                    Some(notice) => recorder.take_in(&notice, &mut waiting),
                    None => is_open = false,
                },
                () = &mut turn => break,
            }
        }
        let Some((event, times)) = waiting.pop() else { continue };
        match timeout(PATIENCE, recorder.record(&event, times)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = format!("{error:#}"), "event not created");
            }
            Err(_) => {
                let timeout_s = PATIENCE.as_secs();
                tracing::debug!(timeout_s, "event not created; the API server did not reply");
            }
        }
    }
}

/// The result of raising an Event's count.
enum Raised {
    /// The new count.
    To(i32),
    /// The Event has expired: the server keeps Events for an hour.
    Gone,
    /// Another node counts it.
    NotOurs,
}

struct Recorder {
    client: Client,
    node_name: String,
    /// The counts of the Events that were created here, by namespace and name.
    made: BTreeMap<(String, String), i32>,
}

impl Recorder {
    fn take_in(&self, notice: &Notice, waiting: &mut Waiting) {
        let event = event(notice, &self.node_name, Timestamp::now());
        if event.is_some_and(|event| !waiting.add(event)) {
            tracing::debug!(queue_length = QUEUE, "queue of events full; event not created");
        }
    }

    /// Creates an Event with this count, or adds it to the count of the existing one.
    async fn record(&mut self, event: &Event, times: i32) -> Result<()> {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = (of(&event.metadata.namespace), of(&event.metadata.name));
        let events: Api<Event> = Api::namespaced(self.client.clone(), &key.0);
        let known = self.made.remove(&key);
        if let Some(count) = self.send(&events, event, times, known).await? {
            self.remember(key, count);
        }
        Ok(())
    }

    /// Returns the new count; `None` if another node counts the Event.
    async fn send(
        &self,
        events: &Api<Event>,
        event: &Event,
        times: i32,
        known: Option<i32>,
    ) -> Result<Option<i32>> {
        if let Some(count) = known {
            match self.raise(events, event, Some(count.saturating_add(times))).await? {
                Raised::To(count) => return Ok(Some(count)),
                Raised::NotOurs => return Ok(None),
                Raised::Gone => {}
            }
        }
        let counted = Event { count: Some(times), ..event.clone() };
        match events.create(&PostParams::default(), &counted).await {
            Ok(_) => return Ok(Some(times)),
            // Another node was first, or this agent before a restart.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        let Raised::To(count) = self.raise(events, event, None).await? else { return Ok(None) };
        match self.raise(events, event, Some(count.saturating_add(times))).await? {
            Raised::To(count) => Ok(Some(count)),
            Raised::Gone | Raised::NotOurs => Ok(None),
        }
    }

    /// Updates an Event's last time and its count, if known; returns the count. The server changes
    /// nothing unless this node has created the Event.
    async fn raise(
        &self,
        events: &Api<Event>,
        event: &Event,
        count: Option<i32>,
    ) -> Result<Raised> {
        let mut operations = vec![
            json!({"op": "test", "path": "/reportingInstance", "value": self.node_name}),
            json!({"op": "add", "path": "/lastTimestamp", "value": event.last_timestamp}),
        ];
        operations
            .extend(count.map(|count| json!({"op": "add", "path": "/count", "value": count})));
        let operations: Operations = serde_json::from_value(operations.into())?;
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Json::<()>(operations);
        match events.patch(name, &PatchParams::default(), &patch).await {
            Ok(event) => Ok(Raised::To(event.count.unwrap_or(1))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Raised::Gone),
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(Raised::NotOurs),
            Err(error) => Err(error.into()),
        }
    }

    fn remember(&mut self, key: (String, String), count: i32) {
        if self.made.len() >= REMEMBERED {
            // Any one: the server still has it.
            self.made.pop_first();
        }
        self.made.insert(key, count);
    }
}

#[cfg(test)]
mod tests {
    use lb_process::notices::NoticeReason::{AddressAnnounced, AddressInUse};
    use lb_process::notices::{NoticeObject, NoticeReason};
    use lb_rules::model::{Kind, ObjectRef};

    use super::*;

    #[test]
    fn news_leaves_room_for_warnings() {
        let (queue, mut notices) = mpsc::channel(QUEUE);
        let events = Events { log: NoticeLog::default(), queue };
        let post = |reason: NoticeReason| {
            let reference = ObjectRef::new(Kind::Service, Some("shop"), Some("web"));
            let about = Some(NoticeObject { reference, uid: String::new() });
            events.post(Notice { about, reason, message: String::new() });
        };
        (0..10_000).for_each(|_| post(AddressAnnounced));
        (0..10_000).for_each(|_| post(AddressInUse));
        let queued: Vec<_> = std::iter::from_fn(|| notices.try_recv().ok()).collect();
        let warnings = queued.iter().filter(|notice| notice.reason == AddressInUse).count();
        assert_eq!((queued.len(), warnings), (QUEUE, QUEUE / 2));
    }
}
