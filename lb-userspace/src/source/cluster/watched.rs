//! One kind of objects: listed in pages, then watched from there on.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{ObjectList, Request, WatchEvent};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::known::Known;
use super::trouble::Trouble;
use crate::backoff::Backoff;
use crate::model::{Kind, ObjectRef, Problem};
use crate::source::Event;

/// As large as other clients' pages.
const PAGE: u32 = 500;
/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Servers send a bookmark every minute where nothing happens. A watch that is silent for longer
/// is asked for anew: the connection may be dead, and nobody would ever tell us.
const SILENCE: Duration = Duration::from_secs(150);
/// A watch that ends sooner than this counts as a failure, so that a server that hangs up at
/// once is not asked without pause.
const BRIEF: Duration = Duration::from_secs(1);

type Told = Result<(), Trouble>;

pub struct Watched {
    client: Client,
    kind: Kind,
    labels: Option<String>,
    /// Who should be among them.
    expected: Option<String>,
    known: Known,
    /// From where to watch; `None`: list first.
    version: Option<String>,
}

impl Watched {
    pub fn new(client: Client, kind: Kind) -> Self {
        Self { client, kind, labels: None, expected: None, known: Known::new(kind), version: None }
    }

    pub fn labelled(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }
    }

    /// It is said if it is not among the first that are listed.
    pub fn with(self, name: &str) -> Self {
        Self { expected: Some(name.to_owned()), ..self }
    }

    /// Tells events as long as somebody listens. `listed` is dropped after the first list.
    pub async fn run(mut self, events: mpsc::UnboundedSender<Event>, listed: mpsc::Sender<()>) {
        let mut listed = Some(listed);
        let mut backoff = Backoff::default();
        let mut complained = false;
        let kind = self.kind.name();
        while !events.is_closed() {
            let began = Instant::now();
            let mut heard = false;
            let mut hear = || {
                if complained {
                    tracing::info!(%kind, "watch restored");
                }
                complained = false;
                heard = true;
            };
            match self.list_and_watch(&events, &mut listed, &mut hear).await {
                Err(Trouble::Expired) => {
                    tracing::debug!(%kind, "resource version expired; listing again");
                    self.version = None;
                }
                Err(trouble) => {
                    let error = trouble.describe();
                    if complained {
                        tracing::debug!(%kind, error, "watch still failing");
                    } else {
                        tracing::warn!(
                            %kind,
                            error,
                            "watch failed; keeping the programmed state and retrying"
                        );
                    }
                    complained = true;
                }
                Ok(()) => {}
            }
            if heard && began.elapsed() > BRIEF {
                backoff.reset();
            } else {
                sleep(backoff.next()).await;
            }
        }
    }

    /// Until the watch ends, as every watch does some time. `heard` is called whenever the
    /// server has said something.
    async fn list_and_watch(
        &mut self,
        events: &mpsc::UnboundedSender<Event>,
        listed: &mut Option<mpsc::Sender<()>>,
        heard: &mut impl FnMut(),
    ) -> Told {
        if self.version.is_none() {
            let version = self.list(events).await?;
            self.version = Some(version);
            heard();
            if listed.take().is_some() {
                self.miss(events);
            }
        }
        self.watch(events, heard).await
    }

    /// Lists all objects, and says from which version to watch. Always the most recent state:
    /// an older one, which a server may have at hand, could take back what was told before.
    async fn list(&mut self, events: &mpsc::UnboundedSender<Event>) -> Result<String, Trouble> {
        self.known.list();
        let mut parameters = ListParams {
            label_selector: self.labels.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        loop {
            let request = self.request(|request| request.list(&parameters))?;
            let page = self.client.request::<ObjectList<Value>>(request);
            let page = timeout(PATIENCE, page)
                .await
                .map_err(|_| Trouble::Failed(format!("no answer in {} s", PATIENCE.as_secs())))?
                .map_err(Trouble::of)?;
            let mut changes: Vec<Event> =
                page.items.into_iter().filter_map(|object| self.known.apply(object)).collect();
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => {
                    tell(events, changes);
                    parameters.continue_token = Some(token);
                }
                None => {
                    changes.extend(self.known.listed());
                    tell(events, changes);
                    let version = page.metadata.resource_version;
                    return version.ok_or_else(|| {
                        Trouble::Failed("the server's list has no resourceVersion".to_owned())
                    });
                }
            }
        }
    }

    async fn watch(
        &mut self,
        events: &mpsc::UnboundedSender<Event>,
        heard: &mut impl FnMut(),
    ) -> Told {
        let parameters = WatchParams {
            label_selector: self.labels.clone(),
            bookmarks: true,
            ..WatchParams::default()
        };
        let from = self.version.clone().unwrap_or_default();
        let request = self.request(|request| request.watch(&parameters, &from))?;
        let stream = timeout(PATIENCE, self.client.request_events::<Value>(request))
            .await
            .map_err(|_| Trouble::Failed(format!("no answer in {} s", PATIENCE.as_secs())))?
            .map_err(Trouble::of)?;
        heard();
        let mut stream = pin!(stream);
        loop {
            let Ok(event) = timeout(SILENCE, stream.next()).await else {
                let (kind, silence_s) = (self.kind.name(), SILENCE.as_secs());
                tracing::debug!(%kind, silence_s, "watch silent; opening a new one");
                return Ok(());
            };
            let Some(event) = event else { return Ok(()) };
            heard();
            match event.map_err(Trouble::of)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.move_on(&object);
                    tell(events, self.known.apply(object));
                }
                WatchEvent::Deleted(object) => {
                    self.move_on(&object);
                    tell(events, self.known.delete(&object));
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.version = Some(bookmark.metadata.resource_version);
                }
                WatchEvent::Error(status) => return Err(Trouble::of_status(status)),
            }
        }
    }

    fn move_on(&mut self, object: &Value) {
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.version = Some(version.to_owned());
        }
    }

    fn request<B>(
        &self,
        build: impl FnOnce(Request) -> Result<B, kube::core::request::Error>,
    ) -> Result<B, Trouble> {
        build(Request::new(self.kind.path())).map_err(|error| Trouble::Failed(error.to_string()))
    }

    /// A Node that is not there is a slip in our own name more often than not.
    fn miss(&self, events: &mpsc::UnboundedSender<Event>) {
        let Some(name) = &self.expected else { return };
        let reference = ObjectRef::new(self.kind, None, Some(name));
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
        tell(events, [Event::Problem(problem)]);
    }
}

/// Nobody need listen any more: `run` looks after that.
fn tell(events: &mpsc::UnboundedSender<Event>, told: impl IntoIterator<Item = Event>) {
    let mut told: Vec<Event> = told.into_iter().collect();
    let event = if told.len() > 1 { Some(Event::Together(told)) } else { told.pop() };
    if let Some(event) = event {
        let _ = events.send(event);
    }
}
