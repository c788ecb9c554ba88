//! Sources of objects. The rest of the agent does not depend on the kind of source.

pub mod cluster;
pub mod documents;
pub mod manifests;
mod watch;

use std::future::Future;

use anyhow::Result;
use tokio::sync::mpsc;

use crate::model::{Object, ObjectRef, Problem};

pub use cluster::{Cluster, ControllerCluster, IngressCluster};
pub use manifests::Manifests;

/// An event from a source.
#[derive(Debug)]
pub enum Event {
    /// An object was added or changed.
    Applied(Object),
    Deleted(ObjectRef),
    /// Simultaneous events, which must be handled together.
    Together(Vec<Event>),
    /// All existing objects have been delivered.
    Synced,
    /// An object or file could not be read.
    Problem(Problem),
}

/// Sends events until the receiver is dropped.
pub trait Source {
    fn run(self, events: mpsc::UnboundedSender<Event>) -> impl Future<Output = Result<()>> + Send;
}
