//! What the controller of addresses watches in a cluster.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::{Either, join_all, select};
use kube::Client;
use lb_common::layout::Forwarding;
use lb_rules::model::Kind;
use lb_waits::Waits;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::api::Api;
use super::nodes::Scope;
use super::report::Report;
use super::transport::Transport;
use super::watched::{LONGEST_STREAM, Shared, Watched};
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
            Kind::Service => api.labelled(SERVICE_SELECTOR),
            kind if kind.is_of_metallb() => api.in_namespace(&self.metallb_namespace),
            _ => api,
        }
    }
}

impl Source for ControllerCluster {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let scope = Arc::new(Scope::new(Forwarding::Masquerade));
        let shared = Shared {
            report: Report::new(events.clone(), scope, Some(self.transport.servers())),
            transport: Some(self.transport.clone()),
            relist: Arc::new(Semaphore::new(1)),
            longest_absence: LONGEST_ABSENCE,
            longest_stream: LONGEST_STREAM,
            waits: Waits::of_process(),
        };
        let (watches, all_listed): (Vec<_>, Vec<_>) = Kind::OF_CONTROLLER
            .into_iter()
            .map(|kind| {
                let (listed, is_listed) = oneshot::channel();
                (Watched::new(self.api(kind), shared.clone(), listed), is_listed)
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
