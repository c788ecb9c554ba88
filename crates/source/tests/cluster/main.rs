//! The cluster source with an API server over real HTTP, which also closes watches, forgets
//! versions, refuses requests and stops.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod access;
mod announcement_statuses;
mod controller;
mod events;
mod hostile;
mod ingress;
mod nodes;
mod permissions;
mod pools;
mod resuming;
mod server;
mod startup_taint;
mod unread;
mod watching;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::{Client, Config};
use lb_source::{Cluster, Event, Extent, Source};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use server::{NODES, SERVICES, Server};

/// A long limit costs time only in failures. It is less than the minute after which a source gives
/// up a silent server, so that tests do not pass by that.
pub const SOON: Duration = Duration::from_secs(50);

/// The events of a source.
struct Reported {
    events: mpsc::UnboundedReceiver<Event>,
    /// All reported objects that exist, as `Kind namespace/name`.
    there: BTreeSet<String>,
    applied: Vec<String>,
    deleted: Vec<String>,
    problems: Vec<String>,
    /// What has been delivered, and how often all has.
    extent: Option<Extent>,
    synced: usize,
}

impl Reported {
    fn watching(server: &Server) -> Self {
        Self::of(Cluster::new(client(server), "node-a"))
    }

    fn of(cluster: impl Source + Send + 'static) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(cluster.run(sender));
        Self {
            events,
            there: BTreeSet::new(),
            applied: Vec::new(),
            deleted: Vec::new(),
            problems: Vec::new(),
            extent: None,
            synced: 0,
        }
    }

    async fn synced(server: &Server) -> Self {
        let mut reported = Self::watching(server);
        reported.until(|reported| reported.synced == 1).await;
        reported
    }

    /// Receives events until the condition holds.
    async fn until(&mut self, such: impl Fn(&Self) -> bool) {
        while !such(self) {
            let event = timeout(SOON, self.events.recv()).await;
            let event = event.unwrap_or_else(|_| panic!("reported only {:?}", self.there));
            self.take(event.expect("a source never ends"));
        }
    }

    /// Receives the events so far.
    fn so_far(&mut self) -> &Self {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        self
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Applied(object) => {
                let name = object.reference().to_string();
                self.there.insert(name.clone());
                self.applied.push(name);
            }
            Event::Deleted(reference) => {
                assert!(self.there.remove(&reference.to_string()), "{reference} was not there");
                self.deleted.push(reference.to_string());
            }
            Event::Problem(problem) => self.problems.push(problem.to_string()),
            Event::Synced(extent) => {
                assert!(self.extent < Some(extent) || extent == Extent::All);
                self.extent = Some(extent);
                self.synced += usize::from(extent == Extent::All);
            }
            Event::Together(events) => events.into_iter().for_each(|event| self.take(event)),
        }
    }

    fn is_there(&self, name: &str) -> bool {
        self.there.contains(name)
    }
}

fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address()).parse().unwrap();
    // The source has its own retries.
    let mut config = Config::new(url);
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {}})
}

fn slice(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "addressType": "IPv4", "endpoints": []
    })
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name}})
}

async fn with_services(names: &[&str]) -> Server {
    let server = Server::start().await;
    server.put(NODES, node("node-a"));
    for name in names {
        server.put(SERVICES, service(name));
    }
    server
}

fn lists(requests: &[server::Request], path: &str) -> usize {
    requests.iter().filter(|request| request.path == path && request.is_list()).count()
}

fn watches(requests: &[server::Request], path: &str) -> usize {
    let watched = |r: &&server::Request| r.path == path && r.watch && r.status == 200;
    requests.iter().filter(watched).count()
}
