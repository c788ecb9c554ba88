//! Watches: the existing objects, and then every change of them.
//!
//! A watch stores only its position in the changes. A slow client costs no memory and delays no
//! other. A client that falls behind the window must list again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::list::{revision, too_old};
use super::selectors::Selector;
use super::{Api, Request, Target, shown};
use crate::failure::Failure;
use crate::kinds::Violation;
use crate::storage::{Change, Storage, Stored};

const BOOKMARKS: Duration = Duration::from_secs(60);
/// The duration for clients that do not request one.
const LONGEST: Duration = Duration::from_secs(3600);

pub struct Watch {
    storage: Storage,
    target: Target,
    selector: Selector,
    prefix: String,
    /// All changes up to this revision have been handled.
    position: u64,
    pending: VecDeque<Event>,
    revisions: sync::watch::Receiver<u64>,
    bookmarks: Option<Interval>,
    deadline: Instant,
    ended: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub type_: &'static str,
    pub object: Value,
}

impl Api {
    pub fn watch(&self, request: &Request) -> Result<Watch, Failure> {
        let (target, query) = (&request.target, &request.query);
        let labels = query.text("labelSelector");
        let mut selector = Selector::parse(target.kind, labels, query.text("fieldSelector"))?;
        if let Some(name) = &target.name {
            selector = selector.with_name(name);
        }
        let timeout = query.number("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok());
        let timeout = timeout.filter(|n| *n > 0).map_or(LONGEST, Duration::from_secs);
        let from = revision(query)?;
        let initial = query.flag("sendInitialEvents")?;
        check_initial_events(initial, query.text("resourceVersionMatch"))?;

        let bookmarks = query.flag("allowWatchBookmarks")?.unwrap_or_default().then(|| {
            let mut interval = interval_at(Instant::now() + BOOKMARKS, BOOKMARKS);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        let mut watch = Watch {
            // Subscribed before the state is read, so that no revision is missed.
            revisions: self.storage.revisions(),
            storage: self.storage.clone(),
            target: target.clone(),
            selector,
            prefix: target.prefix(),
            position: from.unwrap_or_default(),
            pending: VecDeque::new(),
            bookmarks,
            deadline: Instant::now() + timeout,
            ended: false,
        };
        match (initial, from) {
            (Some(true), from) => {
                self.check_reached(from.unwrap_or_default())?;
                watch.begin_with_all();
                if watch.bookmarks.is_some() {
                    let mut bookmark = watch.bookmark();
                    bookmark.object["metadata"]["annotations"] =
                        json!({"k8s.io/initial-events-end": "true"});
                    watch.pending.push_back(bookmark);
                }
            }
            (Some(false), None | Some(0)) => watch.position = self.storage.revision(),
            (None, None | Some(0)) => watch.begin_with_all(),
            (_, Some(from)) => self.check_reached(from)?,
        }
        Ok(watch)
    }
}

fn check_initial_events(initial: Option<bool>, wanted: &str) -> Result<(), Failure> {
    let field = "resourceVersionMatch";
    let violation = match (initial, wanted) {
        (None, "") | (Some(_), "NotOlderThan") => return Ok(()),
        (None, _) => {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                          provided";
            Violation::forbidden(field, detail)
        }
        (Some(_), _) => {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            Violation::forbidden(field, detail)
        }
    };
    Err(Failure::invalid_of("meta.k8s.io", "ListOptions", "", &[violation]))
}

impl Watch {
    /// The next event, or `None` at the end of the watch. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            self.revisions.mark_unchanged();
            self.take_changes();
            if !self.pending.is_empty() {
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
                () = bookmark_due => self.pending.push_back(self.bookmark()),
                () = tokio::time::sleep_until(self.deadline) => {
                    self.ended = true;
                    if self.bookmarks.is_some() {
                        self.pending.push_back(self.bookmark());
                    }
                }
            }
        }
    }

    fn take_changes(&mut self) {
        match self.storage.changes(&self.prefix, self.position) {
            Ok((changes, revision)) => {
                self.position = revision;
                let events: Vec<Event> =
                    changes.iter().filter_map(|change| self.event(change)).collect();
                self.pending.extend(events);
            }
            Err(gone) => {
                let object = too_old(self.position, gone).status();
                self.pending.push_back(Event { type_: "ERROR", object });
                self.ended = true;
            }
        }
    }

    fn begin_with_all(&mut self) {
        // The current state is always available.
        let Ok(page) = self.storage.list(&self.prefix, None, None) else {
            return;
        };
        self.position = page.revision;
        for (_, stored) in page.objects {
            if let Some(object) = self.selected(Some(&stored)) {
                self.pending.push_back(Event { type_: "ADDED", object });
            }
        }
    }

    /// The event that a change is for a client with this selector.
    fn event(&self, change: &Change) -> Option<Event> {
        let before = self.selected(change.before.as_ref());
        let after = self.selected(change.after.as_ref());
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => Some(Event { type_: "ADDED", object }),
            (Some(_), Some(object)) => Some(Event { type_: "MODIFIED", object }),
            (Some(mut object), None) => {
                object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(Event { type_: "DELETED", object })
            }
        }
    }

    fn selected(&self, stored: Option<&Arc<Stored>>) -> Option<Value> {
        let object = shown(self.target.kind, stored?);
        self.selector.matches(self.target.kind, &object).then_some(object)
    }

    fn bookmark(&self) -> Event {
        let kind = self.target.kind;
        let object = json!({
            "kind": kind.kind,
            "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": self.position.to_string(), "creationTimestamp": null},
        });
        Event { type_: "BOOKMARK", object }
    }
}
