//! One kind of objects: all are read, then changes are watched from there on.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use lb_process::backoff::{Backoff, random_part_of};
use lb_rules::model::{Kind, Object, ObjectRef, Problem};
use lb_waits::{Resource, Wait, Waits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::api::{Api, ListPart};
use super::known::ReportedObjects;
use super::nodes::Nodes;
use super::object_file::ReportedVersions;
use super::position::{Position, Step, is_version};
use super::report::Report;
use super::response::{Changes, WatchEvent};
use super::transport::{Transport, Used};
use super::trouble::Trouble;
use crate::Event;

/// Objects of a list are reported in groups of this size.
const GROUP: usize = 500;
/// The server sends a bookmark every minute. After a longer silence the connection may be dead.
const SILENCE: Duration = Duration::from_secs(150);
/// A server that streams lists begins at once, and pauses only if it is overloaded.
const STREAM_SILENCE: Duration = Duration::from_secs(10);
/// A list that is streamed for longer is read as a list: changes that arrive all the time, and never
/// its end, would keep the agent waiting for ever.
pub(crate) const LONGEST_STREAM: Duration = Duration::from_secs(120);
/// A watch that ends sooner counts as a failure, so that a server that closes each one at once
/// does not get requests without pause.
const BRIEF: Duration = Duration::from_secs(1);
/// A kind that is not installed is looked for at first after this, and then less and less often.
const ABSENCE: Duration = Duration::from_secs(5);
/// A server that has lost its history has lost it for all agents: their lists spread over this.
const RELIST_SPREAD: Duration = Duration::from_secs(2);

type WatchResult = Result<(), Trouble>;

/// What the watches of all kinds share.
#[derive(Clone)]
pub struct WatchContext {
    pub report: Report,
    /// The transport of requests, unless the client is a test's.
    pub transport: Option<Transport>,
    /// For the repetition of a list: one kind at a time.
    pub relist: Arc<Semaphore>,
    /// The longest time between two looks for a kind that is not installed.
    pub longest_absence: Duration,
    /// The longest time until all objects of a stream have arrived.
    pub longest_stream: Duration,
    pub waits: Waits,
    pub versions: ReportedVersions,
}

impl WatchContext {
    /// Waits until the files differ from those that a request used.
    async fn replaced(&self, used: Option<Used>) {
        match (&self.transport, used) {
            (Some(transport), Some(used)) => transport.replaced(used).await,
            _ => pending().await,
        }
    }

    fn avoid_server(&self, used: Option<Used>) {
        if let (Some(transport), Some(used)) = (&self.transport, used) {
            transport.avoid(used);
        }
    }
}

pub struct Watched {
    api: Api,
    kind: Kind,
    /// Whether nothing waits for it while it is not available.
    is_optional: bool,
    shared: WatchContext,
    known: ReportedObjects,
    position: Position,
    /// Events of a list that `known` includes and that are not reported yet.
    group: Vec<Event>,
    node: Option<OwnNode>,
    /// Until the first list is complete.
    listed: Option<oneshot::Sender<()>>,
    /// Whether all that is known is of an earlier agent: the server has sent nothing yet.
    is_resumed: bool,
    failures: Failures,
    /// How long to wait before the kind is looked for again, if it is not installed.
    absence: Duration,
    /// Until the server has sent the list, or has accepted the watch.
    wait: Option<Wait>,
}

/// This agent's Node, and which others are watched beside it.
struct OwnNode {
    name: String,
    scope: watch::Receiver<Nodes>,
    selected: Nodes,
}

#[derive(Default)]
struct Failures {
    backoff: Backoff,
    is_reported: bool,
    /// Whether the current request has been successful so far.
    is_successful: bool,
}

impl Watched {
    pub fn new(api: Api, shared: WatchContext, listed: oneshot::Sender<()>) -> Self {
        Self {
            kind: api.kind(),
            is_optional: api.kind().is_optional(),
            known: ReportedObjects::new(api.kind()),
            api,
            shared,
            position: Position::default(),
            group: Vec::new(),
            node: None,
            listed: Some(listed),
            is_resumed: false,
            failures: Failures::default(),
            absence: ABSENCE,
            wait: None,
        }
    }

    /// Does without this kind, also if every cluster has it: the role may not grant it.
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// Of Nodes: the one of this name, or all, as `scope` says.
    pub(crate) fn of_nodes(mut self, name: &str, scope: watch::Receiver<Nodes>) -> Self {
        let selected = *scope.borrow();
        self.node = Some(OwnNode { name: name.to_owned(), scope, selected });
        self.select_nodes(selected);
        self
    }

    /// Begins with the objects that an earlier agent held at this version, as if they were listed now.
    pub fn resuming(mut self, version: &str, objects: Vec<Object>) -> Self {
        for object in objects {
            self.known.resume(object.reference());
            self.group.push(Event::Applied(object));
            if self.group.len() >= GROUP {
                self.shared.report.send(self.group.drain(..));
            }
        }
        self.complete(version);
        self.is_resumed = true;
        self
    }

    /// Reports until the receiver is dropped.
    pub async fn run(mut self) {
        loop {
            // The last list may have broken off.
            self.shared.report.send(self.group.drain(..));
            self.follow_scope();
            let step = self.position.next();
            self.begin_wait(&step);
            let used = self.shared.transport.as_ref().map(Transport::used);
            let began = Instant::now();
            let (mut scope, report) = (self.scope(), self.shared.report.clone());
            let outcome = tokio::select! {
                outcome = self.take(&step) => outcome,
                () = changed(&mut scope) => continue,
                () = report.closed() => return,
            };
            if self.failures.take_success() && began.elapsed() > BRIEF {
                self.failures.backoff.reset();
            }
            match outcome {
                Ok(()) if began.elapsed() > BRIEF => {}
                Ok(()) => sleep(self.failures.backoff.next_delay()).await,
                Err(trouble) if self.is_optional && trouble.is_absence() => {
                    self.note_absence(&trouble);
                    self.wait = None;
                    let pause = self.absence;
                    self.absence = (pause * 2).min(self.shared.longest_absence);
                    tokio::select! {
                        () = sleep(pause + random_part_of(pause)) => {}
                        () = report.closed() => return,
                    }
                }
                Err(trouble) => {
                    self.explain_wait(&step, &trouble);
                    if self.position.failed(&step, &trouble) {
                        let (kind, reason) = (self.kind.name(), trouble.describe());
                        tracing::debug!(%kind, reason, "watch continues with another request");
                    } else {
                        self.failures.report(self.kind, &trouble);
                    }
                    if trouble.is_of_server() {
                        self.shared.avoid_server(used);
                    }
                    let pause = sleep(trouble.retry_after() + self.failures.backoff.next_delay());
                    tokio::select! {
                        () = pause => {}
                        () = self.shared.replaced(used), if trouble.may_be_of_files() => {}
                    }
                }
            }
        }
    }

    /// The agent does not wait for a kind that is not installed. Objects of it that were reported before stay: the
    /// response that the kind does not exist may come from a proxy in front of the server.
    fn note_absence(&mut self, trouble: &Trouble) {
        let (kind, reason) = (self.kind.name(), trouble.describe());
        if self.listed.take().is_some_and(|listed| listed.send(()).is_ok()) {
            if !matches!(self.kind, Kind::Node | Kind::EndpointSlice) {
                tracing::debug!(%kind, reason, "kind not available; looking for it from time to time");
            } else {
                // Every cluster has these: the role lacks them.
                tracing::warn!(%kind, reason, "kind not readable; trying again from time to time");
            }
        }
    }

    fn begin_wait(&mut self, step: &Step) {
        let what = if matches!(step, Step::Watch(_)) { "watch" } else { "list" };
        let begin = || {
            let subject = format!("{what} of {} objects", self.kind.name());
            self.shared.waits.begin(Resource::ApiServer, subject)
        };
        self.wait.get_or_insert_with(begin);
    }

    /// A watch that was accepted, and failed later, is waited for again.
    fn explain_wait(&mut self, step: &Step, trouble: &Trouble) {
        self.begin_wait(step);
        let Some(wait) = &self.wait else { return };
        wait.is_for(match trouble.is_of_permissions() {
            true => Resource::Permission,
            false => Resource::ApiServer,
        });
        wait.explain(trouble.describe());
    }

    fn scope(&self) -> Option<watch::Receiver<Nodes>> {
        self.node.as_ref().map(|node| node.scope.clone())
    }

    /// Lists again if other Nodes are to be watched.
    fn follow_scope(&mut self) {
        let Some(node) = &mut self.node else { return };
        let selected = *node.scope.borrow_and_update();
        if selected != node.selected {
            node.selected = selected;
            self.position.list_again();
            self.select_nodes(selected);
        }
    }

    fn select_nodes(&mut self, selected: Nodes) {
        let name = self.node.as_ref().map_or("", |node| &node.name);
        let own = (selected == Nodes::Own).then(|| format!("metadata.name={name}"));
        self.api.select_fields(own);
    }

    /// Makes a request, and reports what it returns until it ends.
    async fn take(&mut self, step: &Step) -> WatchResult {
        let part = match step {
            Step::Watch(version) => return self.watch(version).await,
            Step::Stream(version) => return self.stream(version).await,
            Step::List(version) => ListPart::NotOlderThan(version.clone()),
            Step::ListLatest => ListPart::Latest,
        };
        let _turn = self.turn().await;
        self.list(part).await
    }

    /// Waits until this kind may be listed again. First lists do not wait, not even after an earlier agent's objects.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        if self.listed.is_some() || self.is_resumed {
            return None;
        }
        sleep(random_part_of(RELIST_SPREAD)).await;
        Arc::clone(&self.shared.relist).acquire_owned().await.ok()
    }

    /// Reads a list, and reports how it differs from what was reported before.
    async fn list(&mut self, mut part: ListPart) -> WatchResult {
        self.known.list();
        let version = loop {
            let (known, group, report) = (&mut self.known, &mut self.group, &self.shared.report);
            let meta = self.api.list(&part, |object| {
                group.extend(known.apply(object));
                if group.len() >= GROUP {
                    report.send(group.drain(..));
                }
            });
            let meta = meta.await?;
            match meta.continue_token.filter(|token| !token.is_empty()) {
                Some(token) => part = ListPart::Continue(token),
                None => break meta.resource_version,
            }
        };
        let version = version.filter(|version| is_version(version));
        let version = version.ok_or_else(|| "the server's list has no resourceVersion".to_owned());
        self.complete(&version?);
        Ok(())
    }

    /// The rest of a list is reported, and what it did not contain.
    fn complete(&mut self, version: &str) {
        let gone = self.known.listed();
        self.shared.report.send(self.group.drain(..).chain(gone));
        self.position.listed(version);
        self.is_resumed = false;
        self.publish_version();
        self.failures.end(self.kind);
        self.wait = None;
        self.absence = ABSENCE;
        if let Some(listed) = self.listed.take() {
            self.report_missing_node();
            let _ = listed.send(());
        }
    }

    /// Reads all objects from the beginning of a watch, and then changes from the rest of it.
    async fn stream(&mut self, version: &str) -> WatchResult {
        let turn = self.turn().await;
        self.known.list();
        let mut changes = self.api.watch(version, true).await?;
        let end = Instant::now() + self.shared.longest_stream;
        loop {
            let silence = Instant::now() + STREAM_SILENCE;
            let change = timeout_at(silence.min(end), changes.next()).await;
            let change = change.map_err(|_| Trouble::BrokenOff)?;
            match change?.ok_or(Trouble::BrokenOff)? {
                WatchEvent::Applied(object) => self.group.extend(self.known.apply(object)),
                WatchEvent::Deleted(object) => self.group.extend(self.known.delete(&object)),
                WatchEvent::Bookmark { version: Some(version), ends_list: true }
                    if is_version(&version) =>
                {
                    self.complete(&version);
                    break;
                }
                WatchEvent::Bookmark { .. } => return Err(Trouble::NotStreamed),
            }
            if self.group.len() >= GROUP {
                self.shared.report.send(self.group.drain(..));
            }
        }
        drop(turn);
        self.follow(changes).await
    }

    async fn watch(&mut self, version: &str) -> WatchResult {
        let changes = self.api.watch(version, false).await?;
        self.failures.end(self.kind);
        self.wait = None;
        self.follow(changes).await
    }

    /// Reports changes until the watch ends, as every watch does some time.
    async fn follow(&mut self, mut changes: Changes) -> WatchResult {
        loop {
            let Ok(change) = timeout(SILENCE, changes.next()).await else {
                let (kind, silence_s) = (self.kind.name(), SILENCE.as_secs());
                tracing::debug!(%kind, silence_s, "watch silent; opening a new one");
                return Ok(());
            };
            let change = change?;
            self.is_resumed &= change.is_none();
            match change {
                Some(WatchEvent::Applied(object)) => {
                    self.position.moved_to(object.resource_version().unwrap_or_default());
                    self.shared.report.send(self.known.apply(object));
                }
                Some(WatchEvent::Deleted(object)) => {
                    let version = object["metadata"]["resourceVersion"].as_str();
                    self.position.moved_to(version.unwrap_or_default());
                    self.shared.report.send(self.known.delete(&object));
                }
                Some(WatchEvent::Bookmark { version, .. }) => {
                    self.position.moved_to(&version.unwrap_or_default());
                }
                None => return Ok(()),
            }
            self.publish_version();
        }
    }

    /// Called after all events of the version have been sent.
    fn publish_version(&self) {
        let version = self.position.watchable().filter(|_| self.known.is_readable());
        self.shared.versions.set(self.kind, version);
    }

    /// If this agent's Node does not exist, its name is most likely wrong.
    fn report_missing_node(&self) {
        let Some(node) = &self.node else { return };
        let reference = ObjectRef::new(self.kind, None, Some(&node.name));
        if self.known.contains(&reference) {
            return;
        }
        let problem = Problem {
            object: reference.to_string(),
            field: String::new(),
            message: "is not in the cluster, so no endpoint is local; say with --node-name what \
                      this node is called"
                .to_owned(),
        };
        self.shared.report.send([Event::Problem(problem)]);
    }
}

impl Failures {
    fn report(&mut self, kind: Kind, trouble: &Trouble) {
        let (kind, error) = (kind.name(), trouble.describe());
        if self.is_reported {
            tracing::debug!(%kind, error, "watch still failing");
        } else {
            tracing::warn!(%kind, error, "watch failed; keeping the programmed state and retrying");
        }
        self.is_reported = true;
    }

    fn take_success(&mut self) -> bool {
        std::mem::take(&mut self.is_successful)
    }

    fn end(&mut self, kind: Kind) {
        self.is_successful = true;
        if std::mem::take(&mut self.is_reported) {
            let kind = kind.name();
            tracing::info!(%kind, "watch restored");
        }
    }
}

/// Waits for a change of the scope; for ever, if there is none.
async fn changed(scope: &mut Option<watch::Receiver<Nodes>>) {
    let is_open = match scope {
        Some(scope) => scope.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        pending::<()>().await;
    }
}
