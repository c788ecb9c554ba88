//! The requests for one kind of objects.

use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufReadExt, Stream, StreamExt};
use kube::Client;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::{Request, WatchEvent};
use serde_json::Value;
use tokio::time::timeout;

use super::items::{Items, ListMeta};
use super::trouble::{Trouble, root_cause};
use crate::backoff::random_up_to;
use crate::model::Kind;

/// Other clients use the same size.
const PAGE: u32 = 500;
/// The longest silence while a response is expected.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server ends a watch after this, and up to as long again: the watches of all agents end at
/// different times, even if they began together.
const WATCH: Duration = Duration::from_secs(300);

/// Which part of a list to request.
#[derive(Clone, Debug)]
pub enum Part {
    /// All of it, in a state not older than this version.
    NotOlderThan(String),
    /// The first page of the most recent state.
    Latest,
    /// The page that this token leads to.
    Continue(String),
}

pub struct Api {
    client: Client,
    kind: Kind,
    labels: Option<String>,
    fields: Option<String>,
}

impl Api {
    pub fn new(client: Client, kind: Kind) -> Self {
        Self { client, kind, labels: None, fields: None }
    }

    pub fn labelled(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }
    }

    pub fn select_fields(&mut self, selector: Option<String>) {
        self.fields = selector;
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Hands each object to `take` as soon as it has arrived.
    pub async fn list(
        &self,
        part: &Part,
        mut take: impl FnMut(Value),
    ) -> Result<ListMeta, Trouble> {
        let selected = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        // With a limit the server would read its storage instead of its cache.
        let parameters = match part {
            Part::NotOlderThan(version) => {
                selected.at(version).matching(VersionMatch::NotOlderThan)
            }
            Part::Latest => selected.limit(PAGE),
            Part::Continue(token) => selected.limit(PAGE).continue_token(token),
        };
        let request = Request::new(self.kind.path()).list(&parameters);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let body = in_time(self.client.request_stream(request)).await?.map_err(Trouble::of)?;
        let mut body = pin!(body);
        let mut items = Items::default();
        loop {
            let bytes = in_time(body.fill_buf()).await?;
            let bytes = bytes.map_err(|error| Trouble::Failed(root_cause(&error)))?;
            if bytes.is_empty() {
                return Ok(items.finish()?);
            }
            items.push(bytes, |item| {
                let object = serde_json::from_slice(item);
                take(object.map_err(|error| format!("the server's list is not JSON: {error}"))?);
                Ok::<_, Trouble>(())
            })?;
            let length = bytes.len();
            body.consume_unpin(length);
        }
    }

    /// Changes after a version; with `initial_events` the stream begins with all objects.
    pub async fn watch(
        &self,
        version: &str,
        initial_events: bool,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, Trouble>> + use<>, Trouble> {
        let parameters = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from((WATCH + random_up_to(WATCH)).as_secs()).ok(),
            bookmarks: true,
            send_initial_events: initial_events,
        };
        let request = Request::new(self.kind.path()).watch(&parameters, version);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let stream = in_time(self.client.request_events::<Value>(request)).await?;
        Ok(stream.map_err(Trouble::of)?.map(|event| event.map_err(Trouble::of)))
    }
}

async fn in_time<T>(response: impl Future<Output = T>) -> Result<T, Trouble> {
    let silent = |_| Trouble::Failed(format!("no answer in {} s", PATIENCE.as_secs()));
    timeout(PATIENCE, response).await.map_err(silent)
}
