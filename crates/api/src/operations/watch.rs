//! Watches: the existing objects, and then every change of them.
//!
//! Invariants:
//! - A watch stores only its position: in the existing objects, or in the changes. It holds at most
//!   `MAX_EVENTS_AHEAD` objects or changes that it has not sent, and shares them with the storage. So a slow
//!   client costs little memory and delays no other.
//! - A client that falls behind the window must list again.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::list::{read_revision, refuse_old_revision};
use super::selectors::ObjectSelector;
use super::{Api, ApiRequest, RequestTarget, options, shown};
use crate::failure::ApiFailure;
use crate::kinds::ApiKind;
use crate::storage::{RevisionGone, Storage, StorageKey, StoredChange, StoredObject};

const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The duration for clients that do not request one.
const DEFAULT_WATCH_DURATION: Duration = Duration::from_secs(3600);
/// Seconds. No connection lasts longer, and the clock can count them.
const MAX_WATCH_SECONDS: u64 = 365 * 24 * 3600;

/// Objects or changes that are read at a time.
const MAX_EVENTS_AHEAD: usize = 128;

pub struct ObjectWatch {
    storage: Storage,
    target: RequestTarget,
    selector: ObjectSelector,
    prefix: String,
    /// The last of the existing objects that have been read. `None` when all have been.
    initial: Option<InitialObjects>,
    /// All changes up to this revision have been handled.
    position: u64,
    pending: VecDeque<WatchEvent>,
    revisions: sync::watch::Receiver<u64>,
    bookmarks: Option<Interval>,
    deadline: Instant,
    ended: bool,
}

struct InitialObjects {
    after: Option<StorageKey>,
    /// Whether a bookmark follows the last object.
    bookmark: bool,
}

#[derive(Debug, Clone)]
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub type_: &'static str,
    pub object: ReportedObject,
}

#[derive(Debug, Clone)]
pub enum ReportedObject {
    /// As it is stored, shared with the storage and other watches.
    Stored(Arc<StoredObject>),
    Made(Value),
}

impl ReportedObject {
    /// The text of an object that is sent as it is stored.
    pub(crate) fn stored_text(&self, kind: &ApiKind) -> Option<&str> {
        match self {
            Self::Stored(stored) if kind.rules.stored_as().is_none() => Some(stored.text()),
            _ => None,
        }
    }

    /// In the form of `kind`.
    pub fn seen(&self, kind: &ApiKind) -> Cow<'_, Value> {
        match self {
            Self::Stored(stored) => Cow::Owned(shown(kind, stored)),
            Self::Made(value) => Cow::Borrowed(value),
        }
    }
}

impl Api {
    pub fn watch(&self, request: &ApiRequest) -> Result<ObjectWatch, ApiFailure> {
        let (target, query) = (&request.target, &request.query);
        let labels = query.first_value("labelSelector");
        let mut selector =
            ObjectSelector::parse(target.kind, labels, query.first_value("fieldSelector"))?;
        if let Some(name) = &target.name {
            selector = selector.with_name(name);
        }
        let timeout = query.parse_number("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok());
        let timeout = timeout.filter(|n| *n > 0);
        let timeout = timeout
            .map_or(DEFAULT_WATCH_DURATION, |n| Duration::from_secs(n.min(MAX_WATCH_SECONDS)));
        options::check_watch_options(query)?;
        let from = read_revision(query)?;
        let initial = query.parse_flag("sendInitialEvents")?;

        let bookmarks = query.parse_flag("allowWatchBookmarks")?.unwrap_or_default().then(|| {
            let mut interval = interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        let mut watch = ObjectWatch {
            // Subscribed before the state is read, so that no revision is missed.
            revisions: self.storage.revisions(),
            storage: self.storage.clone(),
            target: target.clone(),
            selector,
            prefix: target.prefix(),
            initial: None,
            position: from.unwrap_or_default(),
            pending: VecDeque::new(),
            bookmarks,
            deadline: Instant::now() + timeout,
            ended: false,
        };
        match (initial, from) {
            (Some(true), from) => {
                self.check_reached(from.unwrap_or_default())?;
                watch.begin_with_all(watch.bookmarks.is_some());
            }
            (Some(false), None | Some(0)) => watch.position = self.storage.revision(),
            (None, None | Some(0)) => watch.begin_with_all(false),
            (_, Some(from)) => self.check_reached(from)?,
        }
        Ok(watch)
    }
}

impl ObjectWatch {
    /// The next event, or `None` at the end of the watch. Cancel safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if self.initial.is_some() {
                self.take_initial();
                // One of many watches: others come first.
                tokio::task::yield_now().await;
                continue;
            }
            self.revisions.mark_unchanged();
            self.take_changes();
            if !self.pending.is_empty() || self.position < self.storage.revision() {
                continue;
            }
            let bookmarks = &mut self.bookmarks;
            let bookmark_due = async {
                match bookmarks {
                    Some(interval) => drop(interval.tick().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.revisions.changed() => self.ended |= changed.is_err(),
                () = bookmark_due => self.pending.push_back(self.bookmark(None)),
                () = tokio::time::sleep_until(self.deadline) => {
                    self.ended = true;
                    if self.bookmarks.is_some() {
                        self.pending.push_back(self.bookmark(None));
                    }
                }
            }
        }
    }

    fn begin_with_all(&mut self, bookmark: bool) {
        self.position = self.storage.revision();
        self.initial = Some(InitialObjects { after: None, bookmark });
    }

    /// The next of the objects that existed when the watch began.
    fn take_initial(&mut self) {
        let Some(initial) = self.initial.take() else { return };
        let after = initial.after.as_deref();
        let page =
            match self.storage.list(&self.prefix, after, Some(self.position), MAX_EVENTS_AHEAD) {
                Ok(page) => page,
                Err(gone) => return self.fall_behind(gone),
            };
        let is_last = page.objects.len() < MAX_EVENTS_AHEAD;
        let last = page.objects.last().map(|(key, _)| key.clone());
        for (_, stored) in page.objects {
            if self.selects(&stored) {
                let object = ReportedObject::Stored(stored);
                self.pending.push_back(WatchEvent { type_: "ADDED", object });
            }
        }
        if !is_last {
            self.initial = Some(InitialObjects { after: last, ..initial });
        } else if initial.bookmark {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let bookmark = self.bookmark(Some(annotations));
            self.pending.push_back(bookmark);
        }
    }

    fn take_changes(&mut self) {
        match self.storage.changes(&self.prefix, self.position, MAX_EVENTS_AHEAD) {
            Ok((changes, revision)) => {
                self.position = revision;
                let events: Vec<WatchEvent> =
                    changes.iter().filter_map(|change| self.event(change)).collect();
                self.pending.extend(events);
            }
            Err(gone) => self.fall_behind(gone),
        }
    }

    fn fall_behind(&mut self, gone: RevisionGone) {
        let object = ReportedObject::Made(refuse_old_revision(self.position, gone).status());
        self.pending.push_back(WatchEvent { type_: "ERROR", object });
        self.ended = true;
    }

    /// The event that a change is for a client with this selector.
    fn event(&self, change: &StoredChange) -> Option<WatchEvent> {
        let selected = |stored: &Option<Arc<StoredObject>>| {
            stored.as_ref().filter(|stored| self.selects(stored)).cloned()
        };
        match (selected(&change.before), selected(&change.after)) {
            (None, None) => None,
            (None, Some(object)) => {
                Some(WatchEvent { type_: "ADDED", object: ReportedObject::Stored(object) })
            }
            (Some(_), Some(object)) => {
                Some(WatchEvent { type_: "MODIFIED", object: ReportedObject::Stored(object) })
            }
            (Some(object), None) => {
                let mut object = shown(self.target.kind, &object);
                object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(WatchEvent { type_: "DELETED", object: ReportedObject::Made(object) })
            }
        }
    }

    fn selects(&self, stored: &StoredObject) -> bool {
        self.selector.matches_stored(self.target.kind, stored)
    }

    fn bookmark(&self, annotations: Option<Value>) -> WatchEvent {
        let kind = self.target.kind;
        let mut object = json!({
            "kind": kind.kind,
            "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": self.position.to_string(), "creationTimestamp": null},
        });
        if let Some(annotations) = annotations {
            object["metadata"]["annotations"] = annotations;
        }
        WatchEvent { type_: "BOOKMARK", object: ReportedObject::Made(object) }
    }
}
