//! Writes which Services this node announces, as MetalLB's `ServiceL2Status` and `ServiceBGPStatus`, where a cluster has
//! these kinds.
//!
//! - `object`: the shape of an object; `ledger`: what differs
//!
//! # Invariants
//! - Objects that MetalLB or others have made are neither changed nor deleted: all deletions select by the labels of this
//!   node's own. While there are objects of others, nothing is written: MetalLB deletes what its own node does not announce.
//! - No more is written than [`WRITE_RATE`] admits, and the object of one Service at most every ten seconds.
//! - Nothing waits for it. Kinds that the cluster lacks, or that this account may not list, are looked for rarely, and
//!   reported once. A refused write concerns one Service.
//!
//! Tests: beside the code, `tests/announcement_statuses.rs` with the embedded API, and `tests/cluster/announcement_statuses.rs`.

mod ledger;
mod object;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, VersionMatch};
use lb_limits::{Rate, RateLimiter};
use lb_process::backoff::{Backoff, random_part_of};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::items::Items;
use super::response;
use super::startup_taint::NodeTaints;
use super::trouble::{Trouble, one_line};
use super::unread::has_metallb_resource;
use ledger::{StatusLedger, StatusWrite};
use object::{ListedStatuses, MANAGER, StatusObjects};

pub use object::{AnnouncedServices, AnnouncedThrough, StatusKind};

/// Requests that write, two for a new object: a hundred at once, and then ten a second.
const WRITE_RATE: Rate = Rate::new(Duration::from_millis(100), 100);
/// Failures of the API server in a row that are reported: with back-off, half a minute or more.
const REPORTED_FAILURES: u32 = 10;

/// When to look at the API server again.
#[derive(Clone, Copy, Debug)]
pub struct StatusIntervals {
    /// Whether somebody has changed or deleted objects.
    pub review: Duration,
    /// Whether a kind or permission that was missing is there.
    pub absence: Duration,
    /// The nodes write what they begin to announce at random times within this: all may advertise one Service.
    pub spread: Duration,
}

impl Default for StatusIntervals {
    fn default() -> Self {
        // Thousands of agents look, and each look reads the labels of all objects.
        Self {
            review: Duration::from_secs(3_600),
            absence: Duration::from_secs(600),
            spread: Duration::from_secs(5),
        }
    }
}

/// Writes the objects of one kind and node.
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    objects: StatusObjects,
    intervals: StatusIntervals,
    /// The kind is there, nobody else writes it, and this node's objects have been listed.
    is_ready: Arc<AtomicBool>,
}

/// What is there of a kind.
enum StatusesFound {
    NoKind,
    /// MetalLB or others write objects.
    OfOthers,
    OfThisNode(ListedStatuses),
}

/// What keeps objects from being written; each is reported once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UnwrittenCause {
    Refusal(u16),
    Failures,
    TooManyServices,
    Others,
}

impl StatusWriter {
    pub fn new(client: Client, kind: StatusKind, metallb_namespace: &str, node_name: &str) -> Self {
        let (namespace, node_name) = (metallb_namespace.to_owned(), node_name.to_owned());
        let objects = StatusObjects { kind, namespace, node_name };
        let intervals = StatusIntervals::default();
        Self { client, objects, intervals, is_ready: Arc::default() }
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

    /// Deletes all objects of this node, if it writes any.
    pub async fn delete_all(&self) -> Result<(), String> {
        if !self.is_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let deleted = self.delete_selected(&self.objects.own_objects()).await;
        deleted.map_err(|trouble| trouble.describe())
    }

    async fn look(&self, owner: &str, is_first: bool) -> Result<StatusesFound, Trouble> {
        // Asked for first: some servers refuse a kind that they lack like one that this account may not read.
        if !has_metallb_resource(&self.client, self.objects.kind.resource()).await? {
            return Ok(StatusesFound::NoKind);
        }
        let cached = |selected: ListParams| selected.at("0").matching(VersionMatch::NotOlderThan);
        // The first of others is enough.
        let mut has_others = false;
        let others = cached(StatusObjects::others_objects());
        self.list(&others, |_| {
            has_others = true;
            false
        })
        .await?;
        if has_others {
            return Ok(StatusesFound::OfOthers);
        }
        let mut own = self.objects.own_objects();
        // The first list has what the last agent of this node has just written.
        if !is_first {
            own = cached(own);
        }
        let (mut listed, mut count) = (ListedStatuses::default(), 0);
        let most = 2 * self.objects.kind.most_objects();
        self.list(&own, |item| {
            self.objects.read_listed(item, owner, &mut listed);
            count += 1;
            count < most
        })
        .await?;
        Ok(StatusesFound::OfThisNode(listed))
    }

    /// Hands items to `take` until it returns false.
    async fn list(
        &self,
        selected: &ListParams,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Trouble> {
        let request = self.objects.requests().list(selected);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let mut body = response::send(&self.client, request).await?;
        let (mut items, mut is_enough) = (Items::default(), false);
        while let Some(bytes) = response::next(&mut body).await? {
            items.push(&bytes, |item| {
                is_enough = is_enough || !take(item);
                Ok::<(), Trouble>(())
            })?;
            if is_enough {
                return Ok(());
            }
        }
        items.finish()?;
        Ok(())
    }

    async fn carry_out(&self, write: &StatusWrite, owner: &str) -> Result<(), Trouble> {
        let requests = self.objects.requests();
        let request = match write {
            // Not applied: an object of this name that is not known as this node's belongs to another writer.
            StatusWrite::Create(service) => {
                let object = self.objects.build_object(service, owner).to_string().into_bytes();
                requests.create(&PostParams::default(), object)
            }
            StatusWrite::SetStatus(service, through) => {
                let name = self.objects.object_name(service);
                let patch = Patch::Apply(self.objects.build_status(service, through));
                // Without force: the server refuses to change what others have set.
                requests.patch_subresource("status", &name, &PatchParams::apply(MANAGER), &patch)
            }
            StatusWrite::Withdraw(service) => {
                let name = self.objects.object_name(service);
                return self.delete_selected(&self.objects.own_object(&name)).await;
            }
            StatusWrite::DeleteStray(name) => {
                return self.delete_selected(&self.objects.own_object(name)).await;
            }
        };
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        send_request(&self.client, request).await
    }

    async fn delete_selected(&self, selected: &ListParams) -> Result<(), Trouble> {
        let request = self.objects.requests().delete_collection(&DeleteParams::default(), selected);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        send_request(&self.client, request).await
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
    has_listed: bool,
    /// The kind is not there, as far as this account can see.
    is_absent: bool,
    review_at: Instant,
    /// When this node begins to write what it announces.
    write_from: Instant,
    backoff: Backoff,
    failures: u32,
    retry_at: Option<Instant>,
    limiter: RateLimiter<Instant>,
    reported: BTreeSet<UnwrittenCause>,
}

impl WriterState {
    fn new(writer: StatusWriter) -> Self {
        let ledger = StatusLedger::new(writer.objects.kind.most_objects());
        let now = Instant::now();
        Self {
            writer,
            ledger,
            owner: String::new(),
            is_known: false,
            has_listed: false,
            is_absent: false,
            review_at: now,
            write_from: now,
            backoff: Backoff::default(),
            failures: 0,
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
        let now = Instant::now();
        self.is_known = true;
        if self.ledger.next_write(now).is_none() {
            self.write_from = now + random_part_of(self.writer.intervals.spread);
        }
        if self.ledger.set_wanted(announced) > 0 {
            let most = self.writer.objects.kind.most_objects();
            let cause = format!("more than {most} Services: the last ones by name have none");
            self.report(UnwrittenCause::TooManyServices, &cause);
        }
    }

    fn is_ready(&self) -> bool {
        self.writer.is_ready.load(Ordering::Relaxed)
    }

    fn set_ready(&self, is_ready: bool) {
        self.writer.is_ready.store(is_ready, Ordering::Relaxed);
    }

    /// When [`Self::act`] has work.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        // Without its uid, the Node can't own objects. A kind that is not there has none to delete.
        let needs_kind = !self.is_absent || self.ledger.is_anything_wanted();
        if !self.is_known || self.owner.is_empty() || !needs_kind {
            return None;
        }
        let write_at = match self.ledger.next_write(now) {
            _ if !self.is_ready() => None,
            Some(_) => Some(self.limiter.due(now)),
            None => self.ledger.next_due(),
        };
        let write_at = write_at.map(|at| at.max(self.write_from));
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

    /// Looks whether objects can be written, and reads this node's.
    async fn review(&mut self) {
        let found = self.writer.look(&self.owner, !self.has_listed).await;
        let now = Instant::now();
        match found {
            Ok(StatusesFound::OfThisNode(listed)) => {
                self.ledger.set_listed(listed);
                self.has_listed = true;
                self.set_ready(true);
                self.wait_for_review(now);
            }
            Ok(StatusesFound::OfOthers) => {
                // What this node has written would grow old.
                let own = self.writer.objects.own_objects();
                if let Err(trouble) = self.writer.delete_selected(&own).await {
                    return self.wait_for_server(&trouble, now);
                }
                self.set_ready(false);
                let cause = "there are objects of MetalLB or others: \
                             while MetalLB's speakers run, only they write";
                self.report(UnwrittenCause::Others, cause);
                self.wait_for_review(now);
            }
            Ok(StatusesFound::NoKind) => {
                tracing::debug!(kind = self.writer.objects.kind.name(), "kind not installed");
                self.wait_for_kind(now);
            }
            Err(trouble) if trouble.is_absence() => {
                self.report_refusal(&trouble);
                self.wait_for_kind(now);
            }
            Err(trouble) => self.wait_for_server(&trouble, now),
        }
    }

    fn note_result(&mut self, write: StatusWrite, done: Result<(), Trouble>, now: Instant) {
        match (done, write) {
            (Ok(()), write) => {
                self.note_answer();
                self.ledger.note_done(write, now);
            }
            // Somebody has deleted it.
            (Err(Trouble::Refused(status)), StatusWrite::SetStatus(service, _))
                if status.code == 404 =>
            {
                self.note_answer();
                self.ledger.note_missing(service, now);
            }
            // There is no such namespace, or the kind is gone.
            (Err(Trouble::Refused(status)), StatusWrite::Create(_)) if status.code == 404 => {
                let cause = format!("{}; is metallb-namespace right?", one_line(&status.message));
                self.report(UnwrittenCause::Refusal(404), &cause);
                self.wait_for_kind(now);
            }
            // An admission policy refuses the object, or another writer owns it: set aside until the next review.
            (Err(Trouble::Refused(status)), write) if is_of_request(status.code) => {
                self.note_answer();
                self.report_refusal(&Trouble::Refused(status));
                self.ledger.note_refused(write);
            }
            (Err(trouble), _) => self.wait_for_server(&trouble, now),
        }
    }

    fn wait_for_review(&mut self, now: Instant) {
        self.is_absent = false;
        let interval = self.writer.intervals.review;
        self.review_at = now + interval - random_part_of(interval / 2);
        self.note_answer();
    }

    fn wait_for_kind(&mut self, now: Instant) {
        self.is_absent = true;
        self.set_ready(false);
        let interval = self.writer.intervals.absence;
        self.review_at = now + interval - random_part_of(interval / 2);
        self.note_answer();
    }

    fn note_answer(&mut self) {
        self.backoff.reset();
        self.failures = 0;
    }

    fn wait_for_server(&mut self, trouble: &Trouble, now: Instant) {
        let cause = trouble.describe();
        tracing::debug!(cause, kind = self.writer.objects.kind.name(), "announcements not written");
        self.failures = self.failures.saturating_add(1);
        if self.failures >= REPORTED_FAILURES {
            self.report(UnwrittenCause::Failures, &cause);
        }
        self.retry_at = Some(now + self.backoff.next_delay().max(trouble.retry_after()));
    }

    fn report_refusal(&mut self, trouble: &Trouble) {
        if let Trouble::Refused(status) = trouble {
            self.report(UnwrittenCause::Refusal(status.code), &trouble.describe());
        }
    }

    /// Logs the first of each cause: each object may have its own.
    fn report(&mut self, cause: UnwrittenCause, description: &str) {
        if self.reported.insert(cause) {
            let kind = self.writer.objects.kind.name();
            tracing::warn!(
                kind,
                cause = description,
                "not all announcements are written as objects"
            );
        }
    }
}

/// Whether the server will refuse the same request again; otherwise any request may fail.
fn is_of_request(code: u16) -> bool {
    (400..500).contains(&code) && ![401, 408, 429].contains(&code)
}
