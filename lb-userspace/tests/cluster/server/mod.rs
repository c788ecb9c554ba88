//! An API server for clients that watch: lists in pages, watches with bookmarks, a window of
//! versions, and their failures.

mod http;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use axum::http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use http::serve;

pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const NODES: &str = "/api/v1/nodes";

pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

struct Shared {
    world: Mutex<World>,
    /// Increases with every change.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct World {
    version: u64,
    /// By path and namespace/name.
    objects: BTreeMap<(String, String), Value>,
    log: Vec<Logged>,
    /// Watches can't begin before this version.
    oldest: u64,
    /// Watches of an older generation have been ended.
    generation: u64,
    /// All watches have had a bookmark of this version.
    bookmark: u64,
    /// The last bookmark that was sent, by path.
    bookmarked: BTreeMap<String, u64>,
    /// The rest of a list that is sent in pages.
    pages: HashMap<String, (u64, Vec<Value>)>,
    forget_page: bool,
    requests: Vec<Request>,
    refused: BTreeMap<String, u16>,
    /// Responses to the next requests for a path.
    scripted: BTreeMap<String, VecDeque<Scripted>>,
    /// Lines for open watches of a path in addition to their events.
    injected: Vec<(String, String)>,
    dialect: Dialect,
    /// Versions from this one on are not known here.
    lags_at: Option<u64>,
    /// The only token that is accepted, if any.
    token: Option<String>,
    gone_as_event: bool,
    /// Events that clients have created, by namespace/name, and the number of rejected ones.
    events: BTreeMap<String, Value>,
    turned_away: usize,
}

struct Logged {
    version: u64,
    path: String,
    before: Option<Value>,
    after: Option<Value>,
}

/// Which kinds of lists a server supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Watches can begin with all objects.
    #[default]
    Streams,
    /// Such watches are refused. Lists of a version come from a cache, without pages.
    Lists,
    /// Such watches begin with all objects, and the end of these is not marked.
    Unmarked,
    /// The same, without further events.
    Endless,
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

impl Server {
    pub async fn start() -> Self {
        let shared = Shared { world: Mutex::default(), changed: watch::Sender::new(0) };
        let shared = Arc::new(shared);
        let (address, serving) = serve(&shared, "127.0.0.1:0".parse().unwrap()).await;
        Self { shared, address, serving: Some(serving) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and accepts no new ones.
    pub async fn go_away(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            assert!(serving.await.unwrap_err().is_cancelled());
        }
    }

    pub async fn come_back(&mut self) {
        let (_, serving) = serve(&self.shared, self.address).await;
        self.serving = Some(serving);
    }

    /// Ends all watches, as servers do from time to time.
    pub fn hang_up(&self) {
        self.change(|world| world.generation += 1);
    }

    /// Sends every watch a bookmark of the present version, and waits until that on `path` has it.
    pub async fn bookmark(&self, path: &str) {
        self.change(|world| world.bookmark = world.version);
        self.until(|world| world.bookmarked.get(path) == Some(&world.bookmark)).await;
    }

    /// Forgets all changes so far: watches from earlier versions get 410 Gone.
    pub fn forget(&self) {
        self.change(|world| world.oldest = world.version);
    }

    /// Sends 410 in the stream instead of as the response's status, as older servers do.
    pub fn say_gone_as_event(&self) {
        self.change(|world| world.gone_as_event = true);
    }

    /// Lets the token of the next page expire.
    pub fn forget_next_page(&self) {
        self.change(|world| world.forget_page = true);
    }

    pub fn speak(&self, dialect: Dialect) {
        self.change(|world| world.dialect = dialect);
    }

    /// Has another history, as if restored from a backup: versions known so far are too new.
    pub fn go_back(&self) {
        self.change(|world| {
            world.version = 1;
            world.lags_at = Some(2);
            for object in world.objects.values_mut() {
                object["metadata"]["resourceVersion"] = "1".into();
            }
        });
    }

    /// Accepts only requests with this token.
    pub fn require(&self, token: &str) {
        self.change(|world| world.token = Some(format!("Bearer {token}")));
    }

    /// Sets the response to the next request for a path.
    pub fn answer_next(&self, path: &str, scripted: Scripted) {
        self.change(|world| world.scripted.entry(path.to_owned()).or_default().push_back(scripted));
    }

    /// Sends a line to all watches of a path that are open.
    pub fn inject(&self, path: &str, line: &str) {
        self.change(|world| world.injected.push((path.to_owned(), line.to_owned())));
    }

    pub fn version(&self) -> String {
        self.shared.world().version.to_string()
    }

    /// Answers requests for a path with a status; 200 lifts that.
    pub fn refuse(&self, path: &str, status: u16) {
        self.change(|world| match status {
            200 => drop(world.refused.remove(path)),
            _ => drop(world.refused.insert(path.to_owned(), status)),
        });
    }

    pub fn put(&self, path: &str, mut object: Value) {
        self.change(|world| {
            world.version += 1;
            object["metadata"]["resourceVersion"] = world.version.to_string().into();
            let key = (path.to_owned(), name(&object));
            let before = world.objects.insert(key, object.clone());
            world.record(path, before, Some(object));
        });
    }

    pub fn remove(&self, path: &str, name: &str) {
        self.change(|world| {
            world.version += 1;
            let mut before = world.objects.remove(&(path.to_owned(), name.to_owned())).unwrap();
            before["metadata"]["resourceVersion"] = world.version.to_string().into();
            world.record(path, Some(before), None);
        });
    }

    /// Waits until an object is like that, and returns it.
    pub async fn object(&self, path: &str, name: &str, such: impl Fn(&Value) -> bool) -> Value {
        let key = (path.to_owned(), name.to_owned());
        self.until(|world| world.objects.get(&key).is_some_and(&such)).await;
        self.shared.world().objects[&key].clone()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.world().requests.clone()
    }

    /// Waits until the condition holds for the requests so far.
    pub async fn asked(&self, such: impl Fn(&[Request]) -> bool) {
        self.until(|world| such(&world.requests)).await;
    }

    async fn until(&self, such: impl Fn(&World) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let until = async {
            while !such(&self.shared.world()) {
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(super::SOON, until).await.expect("clients ask");
    }

    /// Waits for these numbers of created and rejected Events; returns the created ones.
    pub async fn events(&self, made: usize, turned_away: usize) -> Vec<Value> {
        self.until(|world| world.events.len() == made && world.turned_away == turned_away).await;
        self.shared.world().events.values().cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut World)) {
        change(&mut self.shared.world());
        self.shared.note_change();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn note_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl World {
    fn record(&mut self, path: &str, before: Option<Value>, after: Option<Value>) {
        let logged = Logged { version: self.version, path: path.to_owned(), before, after };
        self.log.push(logged);
    }

    /// The next page of a list with its continue token.
    fn list(&mut self, path: &str, query: &HashMap<String, String>) -> Option<Value> {
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
    fn events(&mut self, watch: &mut Watch) -> Vec<Value> {
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

    fn initial_events(&self, watch: &mut Watch) -> Vec<Value> {
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

struct Watch {
    wants_all: bool,
    path: String,
    query: HashMap<String, String>,
    version: u64,
    bookmark: u64,
    generation: u64,
    /// Number of injected lines that were sent, or are older than this watch.
    injected: usize,
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{}", metadata["name"].as_str().unwrap()),
        None => metadata["name"].as_str().unwrap().to_owned(),
    }
}

/// Whether the selectors, in the forms that the agent uses, select an object.
fn selects(query: &HashMap<String, String>, object: &Value) -> bool {
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
