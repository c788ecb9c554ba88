//! The requests for one kind of objects.

use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::Request;
use lb_process::backoff::random_part_of;
use lb_rules::model::Kind;

use super::items::{Items, ListMeta};
use super::received_object::ReceivedObject;
use super::response::{self, Changes};
use super::trouble::Trouble;

/// Other clients use the same size.
const PAGE: u32 = 500;
/// The server ends a watch after this, and up to as long again: the watches of all agents end at
/// different times, even if they began together.
const WATCH: Duration = Duration::from_secs(300);

/// Which part of a list to request.
#[derive(Clone, Debug)]
pub enum ListPart {
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
    /// The API path of the watched objects.
    path: String,
    labels: Option<String>,
    fields: Option<String>,
}

impl Api {
    pub fn new(client: Client, kind: Kind) -> Self {
        Self { client, kind, path: kind.path(), labels: None, fields: None }
    }

    /// Only objects in a namespace.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        if self.kind.is_namespaced()
            && let Some((group, resource)) = self.kind.path().rsplit_once('/')
        {
            self.path = format!("{group}/namespaces/{namespace}/{resource}");
        }
        self
    }

    pub fn labelled(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }
    }

    pub(crate) fn with_fields(self, selector: &str) -> Self {
        Self { fields: Some(selector.to_owned()), ..self }
    }

    pub(crate) fn select_fields(&mut self, selector: Option<String>) {
        self.fields = selector;
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Hands each object to `take` as soon as it has arrived.
    pub async fn list(
        &self,
        part: &ListPart,
        mut take: impl FnMut(ReceivedObject),
    ) -> Result<ListMeta, Trouble> {
        let selected = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        // With a limit the server would read its storage instead of its cache.
        let parameters = match part {
            ListPart::NotOlderThan(version) => {
                selected.at(version).matching(VersionMatch::NotOlderThan)
            }
            ListPart::Latest => selected.limit(PAGE),
            ListPart::Continue(token) => selected.limit(PAGE).continue_token(token),
        };
        let request = Request::new(&self.path).list(&parameters);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let mut body = response::send(&self.client, request).await?;
        let mut items = Items::default();
        while let Some(bytes) = response::next(&mut body).await? {
            items.push(&bytes, |item| {
                let object = ReceivedObject::read(self.kind, item);
                take(object.map_err(|error| format!("the server's list is not JSON: {error}"))?);
                Ok::<_, Trouble>(())
            })?;
        }
        Ok(items.finish()?)
    }

    /// Changes after a version; with `initial_events` the stream begins with all objects.
    pub async fn watch(&self, version: &str, initial_events: bool) -> Result<Changes, Trouble> {
        let parameters = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from((WATCH + random_part_of(WATCH)).as_secs()).ok(),
            bookmarks: true,
            send_initial_events: initial_events,
        };
        let request = Request::new(&self.path).watch(&parameters, version);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        Ok(Changes::of(self.kind, response::send(&self.client, request).await?))
    }
}
