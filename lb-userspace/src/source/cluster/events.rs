//! Notices as Events on the objects, where `kubectl describe` shows them.
//!
//! An Event's name follows from what it says: what all nodes notice alike becomes one Event, and
//! the server turns the others' away. Events are a courtesy: they are few, and what can't be
//! delivered is dropped, as it is in the log.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::notices::{About, Log, Notice, Notices};

const COMPONENT: &str = "millrace";
/// So many may go out at once,
const BURST: u32 = 25;
/// and then one in this time.
const PACE: Duration = Duration::from_secs(10);
/// So many may wait for that.
const QUEUE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(10);
/// Of the API.
const LONGEST_MESSAGE: usize = 1024;
const LONGEST_NAME: usize = 253;

/// To the log, and to the cluster.
pub struct Events(mpsc::Sender<Notice>);

impl Events {
    pub fn new(client: Client, node_name: &str) -> Self {
        let (sender, notices) = mpsc::channel(QUEUE);
        tokio::spawn(deliver(client, node_name.to_owned(), notices));
        Self(sender)
    }
}

impl Notices for Events {
    fn post(&self, notice: Notice) {
        Log.post(notice.clone());
        if notice.about.is_some() && self.0.try_send(notice).is_err() {
            tracing::debug!("too many notices: one was only logged");
        }
    }
}

async fn deliver(client: Client, node_name: String, mut notices: mpsc::Receiver<Notice>) {
    let mut pace = Pace::new(Instant::now());
    while let Some(notice) = notices.recv().await {
        let Some(event) = event(&notice, &node_name, Timestamp::now()) else { continue };
        sleep_until(pace.next(Instant::now())).await;
        if let Err(error) = create(&client, &event).await {
            tracing::debug!("an Event can't be made: {error:#}");
        }
    }
}

async fn create(client: &Client, event: &Event) -> Result<()> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match timeout(PATIENCE, events.create(&PostParams::default(), event)).await? {
        // Another node was first, or we said it before we started anew.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

fn event(notice: &Notice, node_name: &str, now: Timestamp) -> Option<Event> {
    let About { reference, uid } = notice.about.as_ref()?;
    // Objects without a namespace have their Events in this one.
    let namespace = match reference.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    };
    let mut hasher = DefaultHasher::new();
    (reference.kind.name(), uid, notice.reason.name(), &notice.message).hash(&mut hasher);
    if notice.reason.is_of_this_node() {
        node_name.hash(&mut hasher);
    }
    let suffix = format!(".{:016x}", hasher.finish());
    let name = shortened(&reference.name, LONGEST_NAME - suffix.len());
    Some(Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}{suffix}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(reference.kind.api_version().to_owned()),
            kind: Some(reference.kind.name().to_owned()),
            namespace: Some(reference.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(reference.name.clone()),
            uid: Some(uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(notice.reason.name().to_owned()),
        message: Some(shortened(&notice.message, LONGEST_MESSAGE).to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node_name.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    })
}

fn shortened(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// When the next may go out.
struct Pace {
    /// How many may go out at once.
    burst: u32,
    /// When one more may.
    refill: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { burst: BURST, refill: now + PACE }
    }

    fn next(&mut self, now: Instant) -> Instant {
        while self.burst < BURST && self.refill <= now {
            self.burst += 1;
            self.refill += PACE;
        }
        if self.burst == BURST {
            self.refill = now + PACE;
        }
        if self.burst > 0 {
            self.burst -= 1;
            return now;
        }
        let next = self.refill;
        self.refill += PACE;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notices::Reason;
    use crate::source::{Kind, ObjectRef};

    fn notice(reason: Reason, message: &str) -> Notice {
        let reference = ObjectRef::new(Kind::Service, Some("shop"), Some("web"));
        let about = About { reference, uid: "1234".to_owned() };
        Notice { about: Some(about), reason, message: message.to_owned() }
    }

    fn name(notice: &Notice, node: &str) -> String {
        event(notice, node, Timestamp::UNIX_EPOCH).unwrap().metadata.name.unwrap()
    }

    #[test]
    fn what_all_nodes_notice_is_one_event() {
        let common = notice(Reason::NotServed, "spec.ports[0].port: 0 is not a port");
        assert_eq!(name(&common, "a"), name(&common, "b"));
        assert_ne!(name(&common, "a"), name(&notice(Reason::NotServed, "else"), "a"));
        let own = notice(Reason::NoRoom, "all backends are in use");
        assert_ne!(name(&own, "a"), name(&own, "b"));
    }

    #[test]
    fn an_event_fits_the_apis_limits() {
        let long = notice(Reason::NotServed, &"ä".repeat(1_000));
        let event = event(&long, "a", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(event.message.unwrap().len(), LONGEST_MESSAGE);
        assert_eq!(event.metadata.namespace.as_deref(), Some("shop"));
    }

    #[test]
    fn a_burst_goes_out_at_once_and_the_rest_slowly() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let sent: Vec<Instant> = (0..BURST + 2).map(|_| pace.next(start)).collect();
        assert!(sent[..BURST as usize].iter().all(|at| *at == start));
        assert_eq!(sent[BURST as usize..], [start + PACE, start + 2 * PACE]);
        // After a rest of three times the pace, three more.
        let later = start + 5 * PACE;
        let sent: Vec<Instant> = (0..4).map(|_| pace.next(later)).collect();
        assert_eq!(sent, [later, later, later, later + PACE]);
    }
}
