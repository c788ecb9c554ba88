//! The paths to peers, watched by BFD. A broken one ends the session with its peer at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, LocalBoxFuture};
use lb_bfd::State;
use lb_kernel::BfdSessions;

use super::running::Running;
use super::view::BgpView;
use crate::bfd::Monitor;

pub struct Paths(Monitor);

impl Paths {
    pub fn new(kernel: Option<BfdSessions>, began: Instant) -> Self {
        Self(Monitor::new(kernel, began))
    }

    pub fn deadline(&self) -> Option<Duration> {
        self.0.deadline()
    }

    /// Each becomes ready when packets have arrived.
    pub fn sockets(&self) -> impl Iterator<Item = LocalBoxFuture<'_, ()>> {
        self.0.sockets().map(|socket| async { drop(socket.readable().await) }.boxed_local())
    }

    /// Watches what the sessions with peers need.
    pub fn watch(&mut self, peers: &BTreeMap<String, Running>) {
        let wanted = peers.iter().filter_map(|(name, peer)| Some((name.as_str(), peer.watched()?)));
        self.0.set(&wanted.collect());
    }

    /// Returns the peers to which the path has broken.
    pub fn turn(&mut self) -> Turned {
        let mut turned = Turned::default();
        for (peer, change) in self.0.turn() {
            turned.has_changes = true;
            match (change.from, change.to) {
                (_, State::Up) => tracing::info!(peer, "bfd session up"),
                (State::Up, _) => {
                    tracing::warn!(peer, reason = %change.diagnostic, "bfd session down");
                }
                _ => {}
            }
            if change.is_fault() {
                turned.broken.push(peer);
            }
        }
        turned
    }

    pub fn state(&self, peer: &str) -> Option<State> {
        self.0.state(peer)
    }

    pub fn show(&self, view: &mut BgpView) {
        view.bfd = self.0.views();
        view.bfd_packets_refused = self.0.refused();
    }
}

#[derive(Default)]
pub struct Turned {
    pub broken: Vec<String>,
    pub has_changes: bool,
}
