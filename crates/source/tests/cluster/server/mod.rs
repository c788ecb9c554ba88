//! An API server for clients that watch: lists in pages, watches with bookmarks, a window of
//! versions, and their failures.

mod http;
mod world;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use http::serve;
use world::{Shared, World, name};

pub use world::{Dialect, Request, Scripted};

pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const NODES: &str = "/api/v1/nodes";

pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
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

    /// Refuses only the creation of objects; 200: no longer.
    pub fn refuse_creation(&self, list: &str, status: u16) {
        self.refuse(&format!("POST {list}"), status);
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
