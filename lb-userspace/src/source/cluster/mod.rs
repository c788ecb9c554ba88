//! Objects from a cluster's API server.
//!
//! Invariant: traffic does not suffer from an API server that is away, slow or wrong. What was
//! told stays in force until the server itself says otherwise; after an absence everything is
//! listed anew if need be, and what is gone by then is told as deleted.
//!
//! Tests: `tests/cluster/`, against an API server over real HTTP.

mod access;
mod events;
mod known;
mod trouble;
mod watched;

use anyhow::Result;
use futures::future::{join_all, select};
use kube::Client;
use tokio::sync::mpsc;

use super::{Event, Source};
use crate::model::Kind;

pub use access::{Access, Connection};
pub use events::Events;

use watched::Watched;

/// Services that another proxy serves, or none, need not be sent to us at all.
const OUR_SERVICES: &str =
    "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
/// The slices of a headless Service carry the label, too.
const OUR_SLICES: &str = "!service.kubernetes.io/headless";

/// What is watched in a cluster. Legacy Endpoints are not: the cluster itself mirrors them into
/// slices.
pub struct Cluster {
    client: Client,
    /// Which of the Nodes is this one.
    node_name: String,
}

impl Cluster {
    pub fn new(client: Client, node_name: &str) -> Self {
        Self { client, node_name: node_name.to_owned() }
    }

    fn watched(&self) -> [Watched; 3] {
        let watched = |kind| Watched::new(self.client.clone(), kind);
        [
            watched(Kind::Service).labelled(OUR_SERVICES),
            watched(Kind::EndpointSlice).labelled(OUR_SLICES),
            watched(Kind::Node).with(&self.node_name),
        ]
    }
}

impl Source for Cluster {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let (listed, mut all_listed) = mpsc::channel::<()>(1);
        let watches = self.watched().map(|watched| watched.run(events.clone(), listed.clone()));
        drop(listed);
        let tell_synced = async {
            // Each watch drops its end when it has listed its kind once.
            while all_listed.recv().await.is_some() {}
            let _ = events.send(Event::Synced);
            events.closed().await;
        };
        // Watches never end by themselves.
        select(Box::pin(join_all(watches)), Box::pin(tell_synced)).await;
        Ok(())
    }
}
