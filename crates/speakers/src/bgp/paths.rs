//! The paths to peers, watched by BFD. A broken one ends the session with its peer at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, LocalBoxFuture};
use lb_bfd::BfdState;
use lb_kernel::BfdSessions;

use super::session::PeerSession;
use super::view::BgpView;
use crate::bfd::PathMonitor;

pub(crate) struct PeerPaths(PathMonitor);

impl PeerPaths {
    pub fn new(kernel: Option<BfdSessions>, began: Instant) -> Self {
        Self(PathMonitor::new(kernel, began))
    }

    pub(crate) fn next_path_timeout(&self) -> Option<Duration> {
        self.0.deadline()
    }

    /// Each becomes ready when packets have arrived.
    pub(crate) fn wait_for_packets(&self) -> impl Iterator<Item = LocalBoxFuture<'_, ()>> {
        self.0.sockets().map(|socket| async { drop(socket.readable().await) }.boxed_local())
    }

    /// Watches what the sessions with peers need.
    pub(crate) fn watch_peers(&mut self, peers: &BTreeMap<String, PeerSession>) {
        let wanted = peers
            .iter()
            .filter_map(|(name, peer)| Some((name.as_str(), peer.wanted_bfd_session()?)));
        self.0.set_sessions(&wanted.collect());
    }

    /// Returns the peers to which the path has broken.
    pub(crate) fn take_path_changes(&mut self) -> PathChanges {
        let mut turned = PathChanges::default();
        for (peer, change) in self.0.handle_due() {
            turned.has_changes = true;
            match (change.from, change.to) {
                (_, BfdState::Up) => tracing::info!(peer, "bfd session up"),
                (BfdState::Up, _) => {
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

    pub(crate) fn path_state(&self, peer: &str) -> Option<BfdState> {
        self.0.session_state(peer)
    }

    pub(crate) fn add_to_view(&self, view: &mut BgpView) {
        view.bfd = self.0.views();
        view.bfd_packets_refused = self.0.refused();
    }
}

#[derive(Default)]
pub(crate) struct PathChanges {
    pub broken: Vec<String>,
    pub has_changes: bool,
}
