//! Sources of objects: a cluster, or manifests. Whoever receives the [`Event`]s does not know which.
//!
//! - `cluster`: lists and watches objects of several API servers; posts Events, and writes what a node announces
//! - `manifests`: files and directories
//! - `lease`: which of several processes may write
//!
//! # Invariants
//! - What an API server reported stays until the server itself reports otherwise.
//! - A file or object that becomes unreadable keeps its last valid contents.

pub mod cluster;
pub mod lease;
pub mod manifests;
mod watch;

use std::future::Future;

use anyhow::Result;
use lb_rules::model::{Object, ObjectRef, Problem};
use tokio::sync::mpsc;

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
    /// The existing objects have been delivered, as far as this says.
    Synced(Extent),
    /// An object or file could not be read.
    Problem(Problem),
}

/// Which objects have been delivered. A source that does not deliver all at once says so step by step, so that Services
/// do not wait for what only announcements need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Services, their endpoints, and Nodes.
    Services,
    /// These, and pools of addresses.
    Pools,
    /// All objects.
    All,
}

/// Sends events until the receiver is dropped.
pub trait Source {
    fn run(self, events: mpsc::UnboundedSender<Event>) -> impl Future<Output = Result<()>> + Send;
}
