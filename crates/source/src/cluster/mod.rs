//! Objects from a cluster's API server.
//!
//! Invariant: an API server that is unavailable, slow or faulty does not affect traffic. Reported objects
//! stay until the server reports their change or deletion. After an interruption everything is listed
//! again if necessary, and missing objects are reported as deleted.
//!
//! Tests: `tests/cluster/`, against an API server over real HTTP.

mod access;
mod announcement_statuses;
mod api;
mod connection;
mod controller;
mod credentials;
mod events;
mod files;
mod ingress;
mod items;
mod known;
mod lines;
mod nodes;
mod object_file;
mod position;
mod received_object;
mod report;
mod response;
mod servers;
mod startup_taint;
mod transport;
mod trouble;
mod unread;
mod watched;

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use futures::future::{Shared as SharedFuture, join, join_all, join3, select};
use kube::Client;
use lb_common::layout::Forwarding;
use lb_process::backoff::random_part_of;
use lb_rules::kinds::{METALLB_NAMESPACE, PASSWORDS};
use lb_rules::model::Kind;
use lb_waits::Waits;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{Event, Extent, Source};

pub use access::Access;
pub use announcement_statuses::{
    AnnouncedServices, AnnouncedThrough, StatusIntervals, StatusKind, StatusWriter,
};
pub use connection::Connection;
pub use controller::{ControllerCluster, list_latest_services, list_pools};
pub use events::Events;
pub use ingress::IngressCluster;
pub use object_file::{ObjectSaver, SavedVersions};
pub use startup_taint::{NodeTaints, StartupTaint};
pub use unread::{UnreadKind, list_unread_metallb_kinds};

use api::{Api, ListPart};
use nodes::{Nodes, Scope};
use object_file::{Moment, ObjectFile, ReportedVersions, SavedObjects};
use report::Report;
use transport::Transport;
use watched::{LONGEST_STREAM, WatchContext, Watched};

/// Selects the Services that Millrace serves: not those of another proxy, and no headless ones.
const SERVICE_SELECTOR: &str =
    "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
/// The slices of a headless Service carry the label, too.
const SLICE_SELECTOR: &str = "!service.kubernetes.io/headless";

/// Thousands of agents look for kinds that are not installed.
const LONGEST_ABSENCE: Duration = Duration::from_secs(600);

/// The nodes of a cluster may start at the same moment: their first requests spread over this.
/// Loading the programs takes as long.
const START_SPREAD: Duration = Duration::from_secs(1);

/// What is watched in a cluster. Legacy Endpoints are not: the cluster itself mirrors them into
/// slices.
pub struct Cluster {
    client: Client,
    /// The name of this agent's Node.
    node_name: String,
    forwarding: Forwarding,
    /// Whether there is a tunnel key, without which `auto` uses no tunnels.
    tunnel_key: Option<watch::Receiver<bool>>,
    /// The namespace of MetalLB's pools.
    metallb_namespace: String,
    transport: Option<Transport>,
    longest_stream: Duration,
    waits: Waits,
    is_restart: bool,
    object_file: Option<ObjectFile>,
    versions: ReportedVersions,
}

impl Cluster {
    pub fn new(client: Client, node_name: &str) -> Self {
        Self {
            client,
            node_name: node_name.to_owned(),
            forwarding: Forwarding::Masquerade,
            tunnel_key: None,
            metallb_namespace: METALLB_NAMESPACE.to_owned(),
            transport: None,
            longest_stream: LONGEST_STREAM,
            waits: Waits::of_process(),
            is_restart: false,
            object_file: None,
            versions: ReportedVersions::default(),
        }
    }

    /// With a configuration that may change, and servers that are learned.
    pub fn of(connection: Connection, node_name: &str) -> Self {
        let transport = Some(connection.transport);
        Self { transport, ..Self::new(connection.client, node_name) }
    }

    /// How Services are forwarded unless they say otherwise: tunnels need all Nodes.
    pub fn with_forwarding(self, forwarding: Forwarding) -> Self {
        Self { forwarding, ..self }
    }

    /// Whether there is a tunnel key; one may come later.
    pub fn with_tunnel_key(self, tunnel_key: watch::Receiver<bool>) -> Self {
        Self { tunnel_key: Some(tunnel_key), ..self }
    }

    pub fn with_metallb_namespace(self, namespace: &str) -> Self {
        Self { metallb_namespace: namespace.to_owned(), ..self }
    }

    /// An earlier agent of this node has left its maps. Nodes that boot together have none, and those
    /// of a rollout restart one after the other: there is no crowd to spread.
    pub fn with_restart(self, is_restart: bool) -> Self {
        Self { is_restart, ..self }
    }

    /// Begins with the objects that an earlier agent has left in this directory. Returns what leaves those of this one.
    pub fn with_state_directory(self, directory: &Path) -> (Self, ObjectSaver) {
        let file = ObjectFile::in_directory(directory);
        let saver = ObjectSaver::new(file.clone(), self.versions.clone());
        (Self { object_file: Some(file), ..self }, saver)
    }

    /// Notes here what it waits for, instead of among the waits of the process.
    pub fn with_waits(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }

    /// Limits the time until all objects of a stream have arrived; then they are listed.
    pub fn with_longest_stream(self, longest_stream: Duration) -> Self {
        Self { longest_stream, ..self }
    }

    /// How Services are forwarded at the start unless they say otherwise, and when that changes:
    /// `auto` uses no tunnels until there is a key.
    fn tunnels(&self) -> (Forwarding, impl Future<Output = ()> + use<>) {
        let key = match &self.tunnel_key {
            Some(key) if self.forwarding == Forwarding::Auto => Some(key.clone()),
            _ => None,
        };
        let has_none = key.as_ref().is_some_and(|key| !*key.borrow());
        let forwarding = if has_none { Forwarding::Masquerade } else { self.forwarding };
        let comes = async move {
            let Some(mut key) = key.filter(|_| has_none) else { return pending().await };
            if key.wait_for(|has_key| *has_key).await.is_err() {
                // No key can come any more.
                pending().await
            }
        };
        (forwarding, comes)
    }

    fn api(&self, kind: Kind) -> Api {
        // Only of kinds with a namespace that have one here.
        match kind {
            kind if kind.is_of_metallb() => {
                Api::new(self.client.clone(), kind).in_namespace(&self.metallb_namespace)
            }
            _ => Api::new(self.client.clone(), kind),
        }
    }
}

impl Cluster {
    /// One Secret, so that a role can grant it alone.
    fn passwords(&self) -> Api {
        Api::new(self.client.clone(), Kind::Secret)
            .in_namespace(self.client.default_namespace())
            .with_fields(&format!("metadata.name={PASSWORDS}"))
    }
}

/// How long the API server has to say which cluster it is of. Then all is listed.
const CLUSTER_LIMIT: Duration = Duration::from_secs(5);

impl Cluster {
    /// The objects of an earlier agent, if they are of this cluster.
    async fn saved_objects(&self) -> Option<SavedObjects> {
        let file = self.object_file.clone()?;
        let taken = spawn_blocking(move || file.take(&Moment::now()?)).await.ok()?;
        let saved = match taken {
            Ok(saved) => saved.filter(|_| self.is_restart)?,
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::info!(reason, "objects of the earlier agent not used; listing them");
                return None;
            }
        };
        let cluster = timeout(CLUSTER_LIMIT, self.cluster()).await.ok().flatten();
        if cluster.is_none() || cluster.as_deref() != saved.cluster() {
            let reason = "the API server does not say that it is of the same cluster";
            tracing::info!(reason, "objects of the earlier agent not used; listing them");
            return None;
        }
        let (services, slices) = (saved.services.len(), saved.slices.len());
        tracing::info!(services, slices, "continuing with the objects of the earlier agent");
        Some(saved)
    }

    /// The uid of the Service `default/kubernetes`. See [`SavedObjects::cluster`].
    async fn cluster(&self) -> Option<String> {
        let api = Api::new(self.client.clone(), Kind::Service)
            .in_namespace("default")
            .with_fields("metadata.name=kubernetes");
        let mut uid = None;
        let part = ListPart::NotOlderThan("0".to_owned());
        api.list(&part, |sent| uid = sent.uid().map(str::to_owned)).await.ok()?;
        uid
    }
}

impl Source for Cluster {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        if !self.is_restart {
            sleep(random_part_of(START_SPREAD)).await;
        }
        let (forwarding, key_comes) = self.tunnels();
        let scope = Arc::new(Scope::new(forwarding));
        let shared = WatchContext {
            report: Report::new(
                events.clone(),
                Arc::clone(&scope),
                self.transport.as_ref().map(Transport::servers),
            ),
            transport: self.transport.clone(),
            relist: Arc::new(Semaphore::new(1)),
            longest_absence: LONGEST_ABSENCE,
            longest_stream: self.longest_stream,
            waits: self.waits.clone(),
            versions: self.versions.clone(),
        };
        let saved = self.saved_objects().await;
        let watched = |api| {
            let (listed, is_listed) = oneshot::channel();
            (Watched::new(api, shared.clone(), listed), is_listed.map(drop).shared())
        };
        let (services, services_listed) =
            watched(self.api(Kind::Service).labelled(SERVICE_SELECTOR));
        let (slices, slices_listed) =
            watched(self.api(Kind::EndpointSlice).labelled(SLICE_SELECTOR));
        let (services, slices) = match saved {
            Some(SavedObjects { versions, services: all, slices: all_slices }) => (
                services.resuming(&versions.services, all),
                slices.resuming(&versions.slices, all_slices),
            ),
            None => (services, slices),
        };
        let (nodes, nodes_listed) = watched(self.api(Kind::Node));
        let nodes = watch_nodes(nodes, &self.node_name, &scope, services_listed.clone());
        let all_of = |kinds: &[Kind]| -> (Vec<_>, Vec<_>) {
            kinds.iter().map(|&kind| watched(self.api(kind))).unzip()
        };
        let (pools, pools_listed) = all_of(&Kind::OF_POOLS);
        let (mut peers, mut peers_listed) = all_of(&Kind::OF_BGP);
        let (passwords, passwords_listed) = watched(self.passwords());
        peers.push(passwords.optional());
        peers_listed.push(passwords_listed);
        // What the server fails to list keeps nothing waiting that does not need it.
        let report_synced = async {
            let report = |extent| drop(events.send(Event::Synced(extent)));
            join3(services_listed, slices_listed, nodes_listed).await;
            tracing::info!("services, endpoints and nodes listed");
            report(Extent::Services);
            join_all(pools_listed).await;
            report(Extent::Pools);
            join_all(peers_listed).await;
            tracing::info!("all objects listed");
            report(Extent::All);
            events.closed().await;
        };
        let others = join_all(pools.into_iter().chain(peers).map(Watched::run));
        let nodes = join(nodes, key_comes.map(|()| scope.watch_all()));
        let watches = join3(join(services.run(), slices.run()), nodes, others);
        select(Box::pin(watches), Box::pin(report_synced)).await;
        Ok(())
    }
}

/// Services decide whether all Nodes are needed, so their list comes first: what is synchronized
/// then includes the ends of all tunnels.
async fn watch_nodes(
    nodes: Watched,
    own: &str,
    scope: &Scope,
    services_listed: SharedFuture<impl Future<Output = ()>>,
) {
    if *scope.follow().borrow() == Nodes::Own {
        services_listed.await;
    }
    nodes.of_nodes(own, scope.follow()).run().await;
}
