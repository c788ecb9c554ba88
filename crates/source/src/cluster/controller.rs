//! What the controller of addresses watches in a cluster.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::future::{Either, join_all, select};
use kube::Client;
use lb_common::layout::Forwarding;
use lb_rules::model::{Kind, Object};
use lb_waits::Waits;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::api::{Api, ListPart};
use super::nodes::Scope;
use super::object_file::ReportedVersions;
use super::report::Report;
use super::transport::Transport;
use super::trouble::Trouble;
use super::watched::{LONGEST_STREAM, WatchContext, Watched};
use super::{Connection, SERVICE_SELECTOR};
use crate::{Event, Extent, Source};

/// Few controllers look for kinds that are not installed.
const LONGEST_ABSENCE: Duration = Duration::from_secs(30);

pub struct ControllerCluster {
    client: Client,
    transport: Transport,
    metallb_namespace: String,
}

impl ControllerCluster {
    pub fn of(connection: Connection, metallb_namespace: &str) -> Self {
        let Connection { client, transport, .. } = connection;
        Self { client, transport, metallb_namespace: metallb_namespace.to_owned() }
    }

    fn api(&self, kind: Kind) -> Api {
        let api = Api::new(self.client.clone(), kind);
        match kind {
            Kind::Service => services_of(&self.client),
            kind if kind.is_of_metallb() => api.in_namespace(&self.metallb_namespace),
            _ => api,
        }
    }
}

/// Reads all Services that Millrace serves, in the most recent state: watches may be behind it. A Service that
/// can't be read is left out: its watch reports it.
pub async fn list_latest_services(client: &Client) -> Result<Vec<Object>> {
    let api = services_of(client);
    let mut services = Vec::new();
    let mut part = ListPart::Latest;
    loop {
        let list = api.list(&part, |sent| services.extend(sent.decode(Kind::Service).ok()));
        let meta = list
            .await
            .map_err(|trouble| anyhow!("Services can't be listed: {}", trouble.describe()))?;
        match meta.continue_token.filter(|token| !token.is_empty()) {
            Some(token) => part = ListPart::Continue(token),
            None => return Ok(services),
        }
    }
}

/// Reads all pools, where MetalLB announces and advertises its own, and the BGP peers. Kinds that are not installed have none; an object
/// that can't be read is left out.
pub async fn list_pools(client: &Client, metallb_namespace: &str) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    let of_bgp = [Kind::BgpAdvertisement, Kind::BgpPeer, Kind::MetallbBgpPeer];
    for kind in Kind::OF_POOLS.into_iter().chain(of_bgp) {
        let api = Api::new(client.clone(), kind);
        let api = if kind.is_of_metallb() { api.in_namespace(metallb_namespace) } else { api };
        let part = ListPart::NotOlderThan("0".to_owned());
        match api.list(&part, |sent| objects.extend(sent.decode(kind).ok())).await {
            Err(Trouble::Refused(status)) if status.code == 404 => {}
            Err(trouble) => {
                return Err(anyhow!(
                    "{} objects can't be listed: {}",
                    kind.name(),
                    trouble.describe()
                ));
            }
            Ok(_) => {}
        }
    }
    Ok(objects)
}

fn services_of(client: &Client) -> Api {
    Api::new(client.clone(), Kind::Service).labelled(SERVICE_SELECTOR)
}

impl Source for ControllerCluster {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let scope = Arc::new(Scope::new(Forwarding::Masquerade));
        let shared = WatchContext {
            report: Report::new(events.clone(), scope, Some(self.transport.servers())),
            transport: Some(self.transport.clone()),
            relist: Arc::new(Semaphore::new(1)),
            longest_absence: LONGEST_ABSENCE,
            longest_stream: LONGEST_STREAM,
            waits: Waits::of_process(),
            versions: ReportedVersions::default(),
        };
        let (watches, all_listed): (Vec<_>, Vec<_>) = Kind::OF_CONTROLLER
            .into_iter()
            .map(|kind| {
                let (listed, is_listed) = oneshot::channel();
                let watched = Watched::new(self.api(kind), shared.clone(), listed);
                // Without them only pools of nodes have nothing to lend: a role of before must not stop the others.
                let is_optional = [Kind::Node, Kind::EndpointSlice].contains(&kind);
                (if is_optional { watched.optional() } else { watched }, is_listed)
            })
            .unzip();
        let synced = async {
            join_all(all_listed).await;
            let _ = events.send(Event::Synced(Extent::All));
            events.closed().await;
        };
        let watches = join_all(watches.into_iter().map(Watched::run));
        match select(Box::pin(watches), Box::pin(synced)).await {
            Either::Left(_) | Either::Right(_) => Ok(()),
        }
    }
}
