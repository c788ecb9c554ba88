//! Notices as Events on the objects, where `kubectl describe` shows them.
//!
//! An Event's name follows from what it says: what all nodes notice alike becomes one Event, and
//! the server turns the others' away. What is noticed again raises the count of its Event, as
//! Kubernetes' own components do; only the node that made it does, or a thousand nodes would write
//! a thousand times. Events are a courtesy: they are few, and what can't be delivered is dropped,
//! as it is in the log.

mod object;
mod pace;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use json_patch::Patch as Operations;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::notices::{Log, Notice, Notices};
use object::event;
use pace::Pace;
use waiting::Waiting;

/// So many may wait for their turn.
const QUEUE: usize = 256;
/// Of so many it is remembered that they were made here; others are asked about.
const REMEMBERED: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// To the log, and to the cluster.
pub struct Events {
    log: Log,
    queue: mpsc::Sender<Notice>,
}

impl Events {
    pub fn new(client: Client, node_name: &str) -> Self {
        let (queue, notices) = mpsc::channel(QUEUE);
        let recorder =
            Recorder { client, node_name: node_name.to_owned(), made: BTreeMap::default() };
        tokio::spawn(deliver(recorder, notices));
        Self { log: Log::default(), queue }
    }
}

impl Notices for Events {
    fn post(&self, notice: Notice) {
        self.log.post(notice.clone());
        if notice.about.is_some() && self.queue.try_send(notice).is_err() {
            tracing::debug!("queue of notices full; event not created");
        }
    }
}

/// One after the other, each in its turn; meanwhile what is said again is only counted.
async fn deliver(mut recorder: Recorder, mut notices: mpsc::Receiver<Notice>) {
    let mut pace = Pace::new(Instant::now());
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
        let turn = sleep_until(pace.next(Instant::now()));
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

/// What became of raising an Event's count.
enum Raised {
    /// To this.
    To(i32),
    /// The server keeps Events for an hour.
    Gone,
    /// Another node counts it.
    NotOurs,
}

struct Recorder {
    client: Client,
    node_name: String,
    /// How often was told what is in the Events that were made here, by namespace and name.
    made: BTreeMap<(String, String), i32>,
}

impl Recorder {
    fn take_in(&self, notice: &Notice, waiting: &mut Waiting) {
        let event = event(notice, &self.node_name, Timestamp::now());
        if event.is_some_and(|event| !waiting.add(event)) {
            tracing::debug!(queue_length = QUEUE, "queue of events full; event not created");
        }
    }

    /// Makes an Event that was noticed so many times, or adds them to the one that there is.
    async fn record(&mut self, event: &Event, times: i32) -> Result<()> {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = (of(&event.metadata.namespace), of(&event.metadata.name));
        let events: Api<Event> = Api::namespaced(self.client.clone(), &key.0);
        let known = self.made.remove(&key);
        if let Some(count) = self.tell(&events, event, times, known).await? {
            self.remember(key, count);
        }
        Ok(())
    }

    /// Returns how often it was noticed by then; none if another node counts that.
    async fn tell(
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
            // Another node was first, or we said it before we started anew.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        let Raised::To(count) = self.raise(events, event, None).await? else { return Ok(None) };
        match self.raise(events, event, Some(count.saturating_add(times))).await? {
            Raised::To(count) => Ok(Some(count)),
            Raised::Gone | Raised::NotOurs => Ok(None),
        }
    }

    /// Writes when it was noticed last, and how often, if that is known; returns how often. Only
    /// if this node has made it: else the server changes nothing.
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
            // Whichever: the server remembers it.
            self.made.pop_first();
        }
        self.made.insert(key, count);
    }
}
