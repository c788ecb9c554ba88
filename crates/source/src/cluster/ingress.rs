//! What the Ingress proxy watches in a cluster.
//!
//! Secrets are the objects that matter most to keep: of their types only TLS certificates are watched, and each other
//! Secret by its name, if an Ingress that is served refers to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use futures::future::{Either, join_all, select};
use kube::Client;
use lb_common::layout::Forwarding;
use lb_process::backoff::random_part_of;
use lb_rules::model::{Kind, ObjectRef};
use lb_waits::Waits;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::api::Api;
use super::nodes::Scope;
use super::object_file::ReportedVersions;
use super::report::Report;
use super::transport::Transport;
use super::watched::{LONGEST_STREAM, WatchContext, Watched};
use super::{Connection, START_SPREAD};
use crate::{Event, Extent, Source};

const TLS_SECRETS: &str = "type=kubernetes.io/tls";

/// What is watched everywhere; in one namespace, if there is a setting for that.
const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Ingress, Kind::IngressClass];

/// [`Extent::All`] is reported when all is listed, and again each time that the Secrets are that `wanted` adds.
pub struct IngressCluster {
    client: Client,
    transport: Transport,
    /// The Node of this process, whose zone matters; `None`: unknown.
    node_name: Option<String>,
    namespace: Option<String>,
    /// Secrets of other types.
    wanted: watch::Receiver<BTreeSet<ObjectRef>>,
}

impl IngressCluster {
    pub fn of(
        connection: Connection,
        node_name: Option<String>,
        wanted: watch::Receiver<BTreeSet<ObjectRef>>,
    ) -> Self {
        let Connection { client, transport, .. } = connection;
        Self { client, transport, node_name, namespace: None, wanted }
    }

    /// Objects of other namespaces are not watched.
    pub fn in_namespace(self, namespace: Option<String>) -> Self {
        Self { namespace, ..self }
    }

    fn api(&self, kind: Kind) -> Api {
        let api = Api::new(self.client.clone(), kind);
        match &self.namespace {
            Some(namespace) => api.in_namespace(namespace),
            None => api,
        }
    }
}

impl Source for IngressCluster {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        sleep(random_part_of(START_SPREAD)).await;
        let scope = Arc::new(Scope::new(Forwarding::Masquerade));
        let shared = WatchContext {
            report: Report::new(events.clone(), Arc::clone(&scope), Some(self.transport.servers())),
            transport: Some(self.transport.clone()),
            relist: Arc::new(Semaphore::new(1)),
            // All its kinds are of Kubernetes itself.
            longest_absence: Duration::ZERO,
            longest_stream: LONGEST_STREAM,
            waits: Waits::of_process(),
            versions: ReportedVersions::default(),
        };
        let mut all_listed = Vec::new();
        let mut watched = |api| {
            let (listed, is_listed) = oneshot::channel();
            all_listed.push(is_listed);
            Watched::new(api, shared.clone(), listed)
        };
        let mut watches: Vec<_> = KINDS.map(|kind| watched(self.api(kind))).into();
        watches.push(watched(self.api(Kind::Secret).with_fields(TLS_SECRETS)));
        if let Some(name) = &self.node_name {
            // Only for topology hints: a role that does not allow it delays nothing.
            let (listed, _) = oneshot::channel();
            let node = Watched::new(self.api(Kind::Node), shared.clone(), listed);
            watches.push(node.of_nodes(name, scope.follow()));
        }
        let watches = join_all(watches.into_iter().map(Watched::run));
        let named = async {
            join_all(all_listed).await;
            let _ = events.send(Event::Synced(Extent::All));
            Named { client: self.client.clone(), shared: shared.clone(), watches: BTreeMap::new() }
                .follow(self.wanted.clone(), &events)
                .await;
        };
        let ended = events.closed();
        match select(Box::pin(select(Box::pin(watches), Box::pin(named))), Box::pin(ended)).await {
            Either::Left(_) | Either::Right(_) => Ok(()),
        }
    }
}

/// Secrets that are watched by name.
struct Named {
    client: Client,
    shared: WatchContext,
    watches: BTreeMap<ObjectRef, NamedWatch>,
}

struct NamedWatch {
    task: Abort,
    /// Whether it has reported the Secret.
    has_reported: Arc<AtomicBool>,
}

/// Ends a task when it is dropped.
struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Named {
    async fn follow(
        mut self,
        mut wanted: watch::Receiver<BTreeSet<ObjectRef>>,
        events: &mpsc::UnboundedSender<Event>,
    ) {
        while wanted.changed().await.is_ok() {
            let wanted = wanted.borrow_and_update().clone();
            self.remove_others(&wanted).await;
            let listed = self.add(&wanted);
            let events = events.clone();
            tokio::spawn(async move {
                join_all(listed).await;
                let _ = events.send(Event::Synced(Extent::All));
            });
        }
        // The set stays as it is.
        std::future::pending().await
    }

    async fn remove_others(&mut self, wanted: &BTreeSet<ObjectRef>) {
        let gone: Vec<ObjectRef> =
            self.watches.keys().filter(|known| !wanted.contains(known)).cloned().collect();
        for reference in gone {
            if let Some(mut watch) = self.watches.remove(&reference) {
                // It must report nothing after the deletion.
                watch.task.0.abort();
                let _ = (&mut watch.task.0).await;
                // Another watch may know a Secret of this name, which is of the other type.
                if watch.has_reported.load(Relaxed) {
                    self.shared.report.send([Event::Deleted(reference)]);
                }
            }
        }
    }

    /// Watches those that are not watched yet. Each receiver returns when its Secret is listed.
    fn add(&mut self, wanted: &BTreeSet<ObjectRef>) -> Vec<oneshot::Receiver<()>> {
        let mut all_listed = Vec::new();
        for reference in wanted {
            if self.watches.contains_key(reference) {
                continue;
            }
            // Secrets of that type are watched already.
            let fields = format!("metadata.name={},type!=kubernetes.io/tls", reference.name);
            let api = Api::new(self.client.clone(), Kind::Secret)
                .in_namespace(&reference.namespace)
                .with_fields(&fields);
            let (listed, is_listed) = oneshot::channel();
            all_listed.push(is_listed);
            let (report, has_reported) = self.shared.report.of_one();
            let watched = Watched::new(api, WatchContext { report, ..self.shared.clone() }, listed);
            let task = Abort(tokio::spawn(watched.run()));
            self.watches.insert(reference.clone(), NamedWatch { task, has_reported });
        }
        all_listed
    }
}
