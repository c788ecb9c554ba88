//! Where objects come from. The rest of the agent can't tell one source from another.

pub mod cluster;
pub mod documents;
pub mod manifests;
mod watch;

use std::future::Future;

use anyhow::Result;
use tokio::sync::mpsc;

use crate::model::{Object, ObjectRef, Problem};

pub use cluster::Cluster;
pub use manifests::Manifests;

/// What a source tells.
#[derive(Debug)]
pub enum Event {
    /// The object is there, new or changed.
    Applied(Object),
    Deleted(ObjectRef),
    /// What has happened at once: nobody may act on a part of it.
    Together(Vec<Event>),
    /// Everything that is there has been delivered once.
    Synced,
    /// Something could not be read.
    Problem(Problem),
}

/// Delivers events until nobody listens any more.
pub trait Source {
    fn run(self, events: mpsc::UnboundedSender<Event>) -> impl Future<Output = Result<()>> + Send;
}
