//! Calls an HTTP server on this machine, or runs a program, when this node takes or gives up an address, for example to
//! move a floating address of a provider. Below, the server is either, and a request is a call or a run.
//!
//! # Invariants
//! - While the agent runs, every change is sent until the server accepts it: at least once, and of an address the last
//!   one last. A server that refuses a request refuses all changes in it. A change that it refuses by itself delays no
//!   other. A process that starts sends all addresses that it announces.
//! - The election never waits for the server.
//! - At most one request is under way, and an address waits at most once.
//! - Nothing of it leaves this machine: HTTP is without TLS.

mod program;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lb_process::backoff::Backoff;
use lb_waits::{Resource, Wait, Waits};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use program::run_program;

/// The time that the server has for a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Changes in one request.
const MOST_CHANGES: usize = 1_000;

/// What a hook calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookTarget {
    /// A server on this machine: HTTP without TLS.
    Server(Uri),
    /// A program, by its absolute path.
    Program(PathBuf),
}

impl FromStr for HookTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Program(text.into()));
        }
        let url = text.parse::<Uri>().ok().filter(|url| {
            let is_without_user = url.authority().is_some_and(|at| !at.as_str().contains('@'));
            url.scheme_str() == Some("http") && is_without_user
        });
        let url = url.ok_or(
            "neither a URL such as http://127.0.0.1:8080/addresses, without TLS and without a user, nor the absolute \
             path of a program",
        )?;
        if !is_loopback(&url) {
            return Err("names another machine, which the agent would call without TLS: name a \
                        server at 127.0.0.1, [::1] or localhost, or a program"
                .to_owned());
        }
        Ok(Self::Server(url))
    }
}

impl Display for HookTarget {
    /// As logs may show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(url) => f.write_str(&without_secrets(url)),
            Self::Program(path) => path.display().fmt(f),
        }
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

/// An address that this node has taken or given up on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    pub interface: String,
    pub address: IpAddr,
    /// Whether this node announces it now.
    pub is_held: bool,
}

impl AddressChange {
    fn describe(&self) -> Value {
        let state = if self.is_held { "taken" } else { "released" };
        json!({"address": self.address, "interface": self.interface, "state": state})
    }
}

/// The addresses that this node announces.
#[derive(Default)]
pub struct HeldAddresses {
    /// By index of the interface, with its name.
    held: BTreeMap<(u32, IpAddr), String>,
    hook: Option<mpsc::UnboundedSender<AddressChange>>,
}

impl HeldAddresses {
    pub(crate) fn reported_to(hook: Option<mpsc::UnboundedSender<AddressChange>>) -> Self {
        Self { held: BTreeMap::new(), hook }
    }

    /// The kernel answers for the address, perhaps as before.
    pub(crate) fn note_announced(&mut self, device: u32, interface: &str, address: IpAddr) {
        if self.held.contains_key(&(device, address)) {
            return;
        }
        self.held.insert((device, address), interface.to_owned());
        self.send(AddressChange { interface: interface.to_owned(), address, is_held: true });
    }

    /// Another node may have taken the address, too, but has given it up.
    pub fn repeat(&self, device: u32, address: IpAddr) {
        if let Some(interface) = self.held.get(&(device, address)) {
            self.send(AddressChange { interface: interface.clone(), address, is_held: true });
        }
    }

    /// The kernel does not answer any more.
    pub(crate) fn note_withdrawn(&mut self, device: u32, address: IpAddr) {
        if let Some(interface) = self.held.remove(&(device, address)) {
            self.send(AddressChange { interface, address, is_held: false });
        }
    }

    fn send(&self, change: AddressChange) {
        if let Some(hook) = &self.hook {
            // It ends with the process.
            let _ = hook.send(change);
        }
    }
}

/// Changes that the server has not accepted, of each address the last one.
#[derive(Default)]
struct WaitingChanges {
    /// By interface and address.
    changes: BTreeMap<(String, IpAddr), AddressChange>,
    /// Refused by themselves: they are sent alone, and after all others.
    refused: VecDeque<AddressChange>,
}

impl WaitingChanges {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.refused.is_empty()
    }

    fn insert(&mut self, change: AddressChange) {
        let key = (change.interface.clone(), change.address);
        self.refused.retain(|refused| (&refused.interface, refused.address) != (&key.0, key.1));
        self.changes.insert(key, change);
    }

    fn take_batch(&mut self, most: usize) -> Vec<AddressChange> {
        if self.changes.is_empty() {
            return self.refused.pop_front().into_iter().collect();
        }
        let count = most.min(self.changes.len());
        let batch = (0..count).filter_map(|_| self.changes.pop_first());
        batch.map(|(_, change)| change).collect()
    }
}

/// Delivers changes to a server.
pub(crate) struct AnnouncementHook {
    node_name: String,
    target: HookTarget,
    request_limit: Duration,
    waits: Waits,
    client: Client<HttpConnector, Body>,
}

impl AnnouncementHook {
    pub fn new(node_name: &str, target: HookTarget) -> Self {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self {
            node_name: node_name.to_owned(),
            target,
            request_limit: REQUEST_LIMIT,
            waits: Waits::of_process(),
            client,
        }
    }

    /// Runs until the sender is dropped.
    pub(crate) async fn deliver_changes(self, mut changes: mpsc::UnboundedReceiver<AddressChange>) {
        let mut waiting = WaitingChanges::default();
        let (mut backoff, mut failing, mut batch_size) = (Backoff::default(), None, MOST_CHANGES);
        loop {
            if waiting.is_empty() {
                (failing, batch_size) = (None, MOST_CHANGES);
                let Some(change) = changes.recv().await else { return };
                waiting.insert(change);
            }
            while let Ok(change) = changes.try_recv() {
                waiting.insert(change);
            }
            let mut batch = waiting.take_batch(batch_size);
            let Err(error) = self.send_changes(&batch).await else {
                backoff = Backoff::default();
                batch_size = (batch_size * 2).min(MOST_CHANGES);
                continue;
            };
            self.report(&error, batch.len(), &mut failing);
            if batch.len() > 1 {
                // Perhaps the server refuses only one of them: fewer are sent soon.
                (backoff, batch_size) = (Backoff::default(), batch.len() / 2);
                batch.into_iter().for_each(|change| waiting.insert(change));
            } else {
                waiting.refused.extend(batch.pop());
            }
            tokio::select! {
                () = sleep(backoff.next_delay()) => {}
                Some(change) = changes.recv() => waiting.insert(change),
            }
        }
    }

    async fn send_changes(&self, changes: &[AddressChange]) -> Result<()> {
        let changes: Vec<Value> = changes.iter().map(|change| change.describe()).collect();
        let body = json!({"node": self.node_name, "changes": changes}).to_string();
        match &self.target {
            HookTarget::Server(url) => self.post(url, body).await,
            HookTarget::Program(path) => {
                let (path, limit) = (path.clone(), self.request_limit);
                let (ended, result) = oneshot::channel();
                let run = move || drop(ended.send(run_program(&path, &body, limit)));
                // None of the runtime's: on exit, the runtime would wait for the program.
                let thread = thread::Builder::new().name("announcement-hook".to_owned());
                thread.spawn(run).context("no thread can be started")?;
                result.await.context("the thread that runs the program has ended")?
            }
        }
    }

    async fn post(&self, url: &Uri, body: String) -> Result<()> {
        let request = Request::post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))?;
        let response = timeout(self.request_limit, self.client.request(request)).await;
        let response = response.context("no response in time")??;
        ensure!(response.status().is_success(), "the server answered {}", response.status());
        Ok(())
    }

    /// Logs each cause once.
    fn report(&self, error: &anyhow::Error, changes: usize, failing: &mut Option<(Wait, String)>) {
        let cause = format!("{error:#}");
        let (wait, logged) = failing.get_or_insert_with(|| {
            let subject = format!("the announcement hook {}", self.target);
            (self.waits.begin(Resource::Hook, subject), String::new())
        });
        wait.explain(cause.clone());
        if *logged != cause {
            let target = &self.target;
            tracing::warn!(%target, changes, error = cause, "announcement hook failed; retrying");
            *logged = cause;
        }
    }
}

/// A URL as logs may show it: its query or user may be a secret.
fn without_secrets(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let server = authority.rsplit_once('@').map_or(authority, |(_, server)| server);
    format!("{}://{server}{}", url.scheme_str().unwrap_or_default(), url.path())
}
