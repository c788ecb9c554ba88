//! Writes which Services this node announces, as MetalLB's `ServiceL2Status` and `ServiceBGPStatus`, where a cluster has
//! these kinds.
//!
//! - `object`: the shape of an object; `ledger`: what differs
//!
//! # Invariants
//! - Objects that MetalLB or others have made are neither changed nor deleted.
//! - No more is written than [`WRITE_RATE`] admits, and the object of one Service at most every ten seconds.
//! - Nothing waits for it. Kinds that the cluster lacks, or that this account may not write, are looked for rarely, and
//!   reported once.
//!
//! Tests: beside the code, `tests/announcement_statuses.rs` with the embedded API, and `tests/cluster/announcement_statuses.rs`.

mod ledger;
mod object;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, VersionMatch};
use kube::core::Status;
use lb_limits::{Rate, RateLimiter};
use lb_process::backoff::{Backoff, random_part_of};
use lb_rules::model::ServiceName;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::items::Items;
use super::response;
use super::startup_taint::NodeTaints;
use super::trouble::{Trouble, one_line};
use super::unread::has_metallb_resource;
use ledger::{StatusLedger, StatusWrite};
use object::{ListedStatus, MANAGER, StatusObjects};

pub use object::{AnnouncedThrough, StatusKind};

/// Objects that are written: 50 at once, and then five a second.
const WRITE_RATE: Rate = Rate::new(Duration::from_millis(200), 50);

/// When to look at the API server again.
#[derive(Clone, Copy, Debug)]
pub struct StatusIntervals {
    /// Whether somebody has changed or deleted objects.
    pub review: Duration,
    /// Whether a kind or permission that was missing is there.
    pub absence: Duration,
}

impl Default for StatusIntervals {
    fn default() -> Self {
        // Thousands of agents look, and each look reads the labels of all objects.
        Self { review: Duration::from_secs(3_600), absence: Duration::from_secs(600) }
    }
}

/// What a node announces in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedServices {
    pub services: BTreeMap<ServiceName, AnnouncedThrough>,
    /// Dead nodes, and the Services that this node has taken over from them.
    pub taken_over: BTreeSet<(String, ServiceName)>,
}

/// Writes the objects of one kind and node.
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    objects: StatusObjects,
    intervals: StatusIntervals,
}

impl StatusWriter {
    pub fn new(client: Client, kind: StatusKind, metallb_namespace: &str, node_name: &str) -> Self {
        let (namespace, node_name) = (metallb_namespace.to_owned(), node_name.to_owned());
        let objects = StatusObjects { kind, namespace, node_name };
        Self { client, objects, intervals: StatusIntervals::default() }
    }

    pub fn with_intervals(self, intervals: StatusIntervals) -> Self {
        Self { intervals, ..self }
    }

    pub fn kind(&self) -> StatusKind {
        self.objects.kind
    }

    /// Runs until a sender is dropped. `None`: what this node announces is not known yet. The Node owns the objects.
    pub async fn write_whenever_changed(
        self,
        mut announced: watch::Receiver<Option<AnnouncedServices>>,
        mut node: watch::Receiver<NodeTaints>,
    ) {
        if let Err(reason) = self.objects.check_node_name() {
            let kind = self.objects.kind.name();
            tracing::info!(kind, reason, "announcements are not written as objects");
            return;
        }
        let mut state = WriterState::new(self);
        let mut is_new = true;
        loop {
            state.set_owner(&node.borrow_and_update().uid);
            if std::mem::take(&mut is_new)
                && let Some(announced) = &*announced.borrow_and_update()
            {
                state.set_announced(announced);
            }
            let due = state.due(Instant::now());
            tokio::select! {
                biased;
                changed = announced.changed() => match changed {
                    Ok(()) => is_new = true,
                    Err(_) => return,
                },
                changed = node.changed() => if changed.is_err() { return },
                () = sleep_until_due(due) => state.act().await,
            }
        }
    }

    /// Deletes all objects of this node.
    pub async fn delete_all(&self) -> Result<(), String> {
        let selected = ListParams::default().labels(&self.objects.label_selector());
        let requests = self.objects.requests();
        let request = requests.delete_collection(&DeleteParams::default(), &selected);
        let request = request.map_err(|error| error.to_string())?;
        match send_request(&self.client, request).await {
            Err(trouble) if !trouble.is_absence() => Err(trouble.describe()),
            _ => Ok(()),
        }
    }

    /// This node's objects; `None` if the cluster lacks the kind.
    async fn list_objects(&self) -> Result<Option<Vec<ListedStatus>>, Trouble> {
        // Asked for first: some servers refuse a kind that they lack like one that this account may not read.
        if !has_metallb_resource(&self.client, self.objects.kind.resource()).await? {
            return Ok(None);
        }
        let parameters = ListParams::default()
            .labels(&self.objects.label_selector())
            .at("0")
            .matching(VersionMatch::NotOlderThan);
        let request = self.objects.requests().list(&parameters);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let mut body = response::send(&self.client, request).await?;
        let (mut items, mut listed) = (Items::default(), Vec::new());
        let most = 2 * self.objects.kind.most_objects();
        while let Some(bytes) = response::next(&mut body).await? {
            items.push(&bytes, |item| {
                let read = self.objects.read_listed(item);
                listed.push(read.map_err(|error| format!("not an object of the kind: {error}"))?);
                match listed.len() > most {
                    true => Err(format!("more than {most} objects have the labels of this node")),
                    false => Ok(()),
                }
            })?;
        }
        items.finish()?;
        Ok(Some(listed))
    }

    async fn carry_out(&self, write: &StatusWrite, owner: &str) -> Result<(), Trouble> {
        match write {
            StatusWrite::Apply(service, through) => {
                let name = self.objects.object_name(service);
                // The API server ignores a status that is sent with the object.
                self.apply(&name, None, self.objects.build_object(service, owner)).await?;
                let status = self.objects.build_status(service, through);
                self.apply(&name, Some("status"), status).await
            }
            StatusWrite::Withdraw(service) => self.delete(&self.objects.object_name(service)).await,
            StatusWrite::Delete(name) => self.delete(name).await,
        }
    }

    /// Without force: fields that others have set stay, and the server refuses the request.
    async fn apply(
        &self,
        name: &str,
        subresource: Option<&str>,
        object: Value,
    ) -> Result<(), Trouble> {
        let (requests, patch) = (self.objects.requests(), Patch::Apply(object));
        let parameters = PatchParams::apply(MANAGER);
        let request = match subresource {
            Some(subresource) => requests.patch_subresource(subresource, name, &parameters, &patch),
            None => requests.patch(name, &parameters, &patch),
        };
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        send_request(&self.client, request).await
    }

    async fn delete(&self, name: &str) -> Result<(), Trouble> {
        let request = self.objects.requests().delete(name, &DeleteParams::default());
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        match send_request(&self.client, request).await {
            Err(Trouble::Refused(status)) if status.code == 404 => Ok(()),
            sent => sent,
        }
    }
}

async fn send_request(client: &Client, request: Request<Vec<u8>>) -> Result<(), Trouble> {
    let mut body = response::send(client, request).await?;
    response::skip(&mut body).await
}

async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// The state of one [`StatusWriter`].
struct WriterState {
    writer: StatusWriter,
    ledger: StatusLedger<Instant>,
    /// The uid of the Node; empty if it is not known.
    owner: String,
    is_known: bool,
    /// Of which the objects have been deleted, or will be.
    taken_over: BTreeSet<(String, ServiceName)>,
    /// The kind is there, and this node's objects have been read.
    is_ready: bool,
    /// The kind is not there, as far as this account can see.
    is_absent: bool,
    review_at: Instant,
    backoff: Backoff,
    retry_at: Option<Instant>,
    limiter: RateLimiter<Instant>,
    /// The statuses of the API server that were reported; 0 is what this process decides.
    reported: BTreeSet<u16>,
}

impl WriterState {
    fn new(writer: StatusWriter) -> Self {
        let ledger = StatusLedger::new(writer.objects.kind.most_objects());
        Self {
            writer,
            ledger,
            owner: String::new(),
            is_known: false,
            taken_over: BTreeSet::new(),
            is_ready: false,
            is_absent: false,
            review_at: Instant::now(),
            backoff: Backoff::default(),
            retry_at: None,
            limiter: RateLimiter::new(WRITE_RATE),
            reported: BTreeSet::new(),
        }
    }

    fn set_owner(&mut self, uid: &str) {
        if self.owner != uid {
            uid.clone_into(&mut self.owner);
            // The objects of the former Node are deleted with it.
            self.review_at = Instant::now();
        }
    }

    fn set_announced(&mut self, announced: &AnnouncedServices) {
        self.is_known = true;
        let omitted = self.ledger.set_wanted(&announced.services);
        if omitted > 0 {
            let most = self.writer.objects.kind.most_objects();
            self.report(0, &format!("more than {most} Services: the last ones by name have none"));
        }
        let objects = &self.writer.objects;
        let new = announced.taken_over.difference(&self.taken_over);
        let names = new.filter_map(|(node, service)| objects.name_of_other_node(node, service));
        self.ledger.add_deletions(names);
        self.taken_over.clone_from(&announced.taken_over);
    }

    /// When [`Self::act`] has work.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        // Without its uid, the Node can't own objects. A kind that is not there has none to delete.
        let needs_kind = !self.is_absent || self.ledger.is_anything_wanted();
        if !self.is_known || self.owner.is_empty() || !needs_kind {
            return None;
        }
        let write_at = match self.ledger.next_write(now) {
            _ if !self.is_ready => None,
            Some(_) => Some(self.limiter.due(now)),
            None => self.ledger.next_due(),
        };
        let due = write_at.map_or(self.review_at, |at| at.min(self.review_at));
        Some(self.retry_at.map_or(due, |at| at.max(due)))
    }

    async fn act(&mut self) {
        self.retry_at = None;
        let now = Instant::now();
        if self.review_at <= now {
            return self.review().await;
        }
        let Some(write) = self.ledger.next_write(now) else { return };
        self.limiter.reserve(now);
        let done = self.writer.carry_out(&write, &self.owner).await;
        self.note_result(write, done, Instant::now());
    }

    /// Reads this node's objects.
    async fn review(&mut self) {
        let listed = self.writer.list_objects().await;
        let now = Instant::now();
        match listed {
            Ok(Some(listed)) => {
                let mut written = BTreeMap::new();
                let mut strays = Vec::new();
                for status in listed {
                    match status {
                        // Applied again, to belong to this Node.
                        ListedStatus::Of { service, owner, .. } if owner != self.owner => {
                            written.insert(service, AnnouncedThrough::default());
                        }
                        ListedStatus::Of { service, through, .. } => {
                            written.insert(service, through.into());
                        }
                        ListedStatus::Stray(name) => strays.push(name),
                    }
                }
                self.ledger.set_written(written);
                self.ledger.add_deletions(strays);
                (self.is_ready, self.is_absent) = (true, false);
                let interval = self.writer.intervals.review;
                self.review_at = now + interval - random_part_of(interval / 2);
                self.backoff.reset();
            }
            Ok(None) => {
                tracing::debug!(kind = self.writer.objects.kind.name(), "kind not installed");
                self.wait_for_kind(now);
            }
            Err(Trouble::Refused(status)) if is_lasting_refusal(status.code) => {
                self.note_refusal(&status, now);
            }
            Err(trouble) => self.wait_for_server(&trouble, now),
        }
    }

    fn note_result(&mut self, write: StatusWrite, done: Result<(), Trouble>, now: Instant) {
        match (done, write) {
            (Ok(()), write) => {
                self.backoff.reset();
                self.ledger.note_done(write, now);
            }
            (Err(Trouble::Refused(status)), write) if is_lasting_refusal(status.code) => {
                self.note_refusal(&status, now);
                // Somebody deleted it in between, or there is no such namespace.
                if let StatusWrite::Apply(service, _) = write {
                    self.ledger.note_missing(service, now);
                }
            }
            // Another manager has the object, or an admission policy refuses it: until the next review.
            (Err(Trouble::Refused(status)), write) if [400, 409, 422].contains(&status.code) => {
                self.report(status.code, &one_line(&status.message));
                self.ledger.note_done(write, now);
            }
            (Err(trouble), _) => self.wait_for_server(&trouble, now),
        }
    }

    /// The kind, the namespace or the permission is missing.
    fn note_refusal(&mut self, status: &Status, now: Instant) {
        let message = one_line(&status.message);
        match status.code {
            404 => self.report(404, &format!("{message}; is metallb-namespace right?")),
            code => self.report(
                code,
                &format!(
                    "{message}; the agent's ClusterRole, deploy/kustomize/base/role.yaml, grants it"
                ),
            ),
        }
        self.wait_for_kind(now);
    }

    fn wait_for_kind(&mut self, now: Instant) {
        (self.is_ready, self.is_absent) = (false, true);
        let interval = self.writer.intervals.absence;
        self.review_at = now + interval - random_part_of(interval / 2);
    }

    fn wait_for_server(&mut self, trouble: &Trouble, now: Instant) {
        let cause = trouble.describe();
        tracing::debug!(cause, kind = self.writer.objects.kind.name(), "announcements not written");
        self.retry_at = Some(now + self.backoff.next_delay().max(trouble.retry_after()));
    }

    /// Logs the first cause of each status: each object may have its own.
    fn report(&mut self, code: u16, cause: &str) {
        if self.reported.insert(code) {
            let kind = self.writer.objects.kind.name();
            tracing::warn!(kind, cause, "not all announcements are written as objects");
        }
    }
}

fn is_lasting_refusal(code: u16) -> bool {
    [401, 403, 404].contains(&code)
}
