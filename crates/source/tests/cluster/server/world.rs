//! What the server has: objects, their history, requests, and the failures that are to come.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use axum::http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

pub struct Shared {
    pub world: Mutex<World>,
    /// Increases with every change.
    pub changed: watch::Sender<u64>,
}

#[derive(Default)]
pub struct World {
    pub version: u64,
    /// By path and namespace/name.
    pub objects: BTreeMap<(String, String), Value>,
    pub log: Vec<Logged>,
    /// Watches can't begin before this version.
    pub oldest: u64,
    /// Watches of an older generation have been ended.
    pub generation: u64,
    /// All watches have had a bookmark of this version.
    pub bookmark: u64,
    /// The last bookmark that was sent, by path.
    pub bookmarked: BTreeMap<String, u64>,
    /// The rest of a list that is sent in pages.
    pub pages: HashMap<String, (u64, Vec<Value>)>,
    pub forget_page: bool,
    pub requests: Vec<Request>,
    pub refused: BTreeMap<String, u16>,
    /// Responses to the next requests for a path.
    pub scripted: BTreeMap<String, VecDeque<Scripted>>,
    /// Lines for open watches of a path in addition to their events.
    pub injected: Vec<(String, String)>,
    pub dialect: Dialect,
    /// Versions from this one on are not known here.
    pub lags_at: Option<u64>,
    /// The only token that is accepted, if any.
    pub token: Option<String>,
    pub gone_as_event: bool,
    /// Events that clients have created, by namespace/name, and the number of rejected ones.
    pub events: BTreeMap<String, Value>,
    pub turned_away: usize,
}

pub struct Logged {
    pub version: u64,
    pub path: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Which kinds of lists a server supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Watches can begin with all objects.
    #[default]
    Streams,
    /// Watches that stream a list are refused. Lists of a version come from a cache, without pages.
    Lists,
    /// Watches that stream a list begin with all objects, and the end of these is not marked.
    Unmarked,
    /// Watches that stream a list begin with all objects, and have no further events.
    Endless,
    /// Watches that stream a list are refused with this status: the storage of the server does not
    /// say how far it has got.
    Refuses(u16),
    /// Requests with a rule for versions are refused. Lists come in pages.
    Pages,
}

/// A response of whatever sits in front of an API server, or of a broken one.
#[derive(Clone, Debug)]
pub struct Scripted {
    pub status: u16,
    pub retry_after: Option<u32>,
    pub body: String,
}

/// A client's request, and the status of the response.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub watch: bool,
    pub query: HashMap<String, String>,
    pub status: u16,
    pub at: Instant,
}

impl Request {
    /// Whether all objects were requested, as a list or as the beginning of a watch.
    pub fn is_list(&self) -> bool {
        !self.watch || self.query.contains_key("sendInitialEvents")
    }

    pub fn version(&self) -> Option<&str> {
        self.query.get("resourceVersion").map(String::as_str)
    }
}
impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub fn note_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl World {
    pub fn record(&mut self, path: &str, before: Option<Value>, after: Option<Value>) {
        let logged = Logged { version: self.version, path: path.to_owned(), before, after };
        self.log.push(logged);
    }

    /// The next page of a list with its continue token.
    pub fn list(&mut self, path: &str, query: &HashMap<String, String>) -> Option<Value> {
        let (version, mut rest) = match query.get("continue") {
            Some(_) if std::mem::take(&mut self.forget_page) => return None,
            Some(token) => self.pages.remove(token)?,
            None => {
                let all = self.objects.iter().filter(|((of, _), _)| of == path);
                let selected = all.map(|(_, object)| object).filter(|o| selects(query, o));
                (self.version, selected.cloned().collect())
            }
        };
        // Lists from a cache have no pages.
        let limit = query.get("limit").filter(|_| !query.contains_key("resourceVersion"));
        let limit = limit.map_or(usize::MAX, |limit| limit.parse().unwrap());
        let next = rest.split_off(rest.len().min(limit));
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !next.is_empty() {
            let token = format!("page-{}", self.requests.len());
            metadata["continue"] = token.clone().into();
            self.pages.insert(token, (version, next));
        }
        Some(json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": rest}))
    }

    /// The next events of a watch.
    pub fn events(&mut self, watch: &mut Watch) -> Vec<Value> {
        let mut events = Vec::new();
        if std::mem::take(&mut watch.wants_all) {
            events.extend(self.initial_events(watch));
        }
        for logged in &self.log {
            if logged.version <= watch.version || logged.path != watch.path {
                continue;
            }
            watch.version = logged.version;
            let selected = |object: &Option<Value>| {
                object.clone().filter(|object| selects(&watch.query, object))
            };
            let event = match (selected(&logged.before), selected(&logged.after)) {
                (None, None) => continue,
                (None, Some(after)) => json!({"type": "ADDED", "object": after}),
                (Some(_), Some(after)) => json!({"type": "MODIFIED", "object": after}),
                (Some(mut before), None) => {
                    before["metadata"]["resourceVersion"] = logged.version.to_string().into();
                    json!({"type": "DELETED", "object": before})
                }
            };
            events.push(event);
        }
        if self.bookmark > watch.bookmark && watch.query.contains_key("allowWatchBookmarks") {
            watch.bookmark = self.bookmark;
            self.bookmarked.insert(watch.path.clone(), self.bookmark);
            let version = self.bookmark.max(watch.version).to_string();
            let object = json!({
                "apiVersion": "v1", "kind": "Any", "metadata": {"resourceVersion": version}
            });
            events.push(json!({"type": "BOOKMARK", "object": object}));
        }
        events
    }

    pub fn initial_events(&self, watch: &mut Watch) -> Vec<Value> {
        let all = self.objects.iter().filter(|((of, _), _)| *of == watch.path);
        let selected = all.map(|(_, object)| object).filter(|o| selects(&watch.query, o));
        let added = selected.map(|object| json!({"type": "ADDED", "object": object}));
        watch.version = self.version;
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if self.dialect == Dialect::Streams {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": metadata});
        let bookmark = json!({"type": "BOOKMARK", "object": object});
        added.chain((self.dialect != Dialect::Endless).then_some(bookmark)).collect()
    }
}

pub struct Watch {
    pub wants_all: bool,
    pub path: String,
    pub query: HashMap<String, String>,
    pub version: u64,
    pub bookmark: u64,
    pub generation: u64,
    /// Number of injected lines that were sent, or are older than this watch.
    pub injected: usize,
}

pub fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{}", metadata["name"].as_str().unwrap()),
        None => metadata["name"].as_str().unwrap().to_owned(),
    }
}

/// Whether the selectors, in the forms that the agent uses, select an object.
pub fn selects(query: &HashMap<String, String>, object: &Value) -> bool {
    let labels = query.get("labelSelector").into_iter().flat_map(|selector| selector.split(','));
    let labelled_away = labels
        .map(|term| term.strip_prefix('!').expect("only absent labels are asked for"))
        .any(|label| !object["metadata"]["labels"][label].is_null());
    let mut fields = query.get("fieldSelector").into_iter().flat_map(|all| all.split(','));
    let selected = fields.all(|term| {
        let (field, value) = term.split_once('=').expect("only equality is asked for");
        let (field, equal) = field.strip_suffix('!').map_or((field, true), |field| (field, false));
        let pointer = format!("/{}", field.replace('.', "/"));
        (object.pointer(&pointer).and_then(Value::as_str) == Some(value)) == equal
    });
    !labelled_away && selected
}
