//! Follows which other nodes are dead ([`NodeLiveness`]), and probes their kernels.
//!
//! A probe is a TCP connection to a port where nothing listens: the node's kernel resets it, also if its agent stands
//! still or does not run. It takes the route of connections to the node itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use lb_announce::{NodeLiveness, NodeSigns, ProbeOutcome, Time};
use lb_rules::model::{NODE_PROBE_PORT, NodeAddresses};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::perform::read_deadline_clock;

/// The addresses of every known node.
pub type NodesByName = BTreeMap<String, NodeAddresses>;

/// What the announcer knows of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedNodes {
    /// How many are alive, and would be found dead if they died.
    pub alive: usize,
    pub dead: BTreeSet<String>,
}

/// Between two looks at the signs.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What came of a probe.
struct ProbeResult {
    node: String,
    sent: Time,
    outcome: ProbeOutcome,
}

pub(crate) struct NodeWatch {
    /// `None`: no node is ever declared dead.
    liveness: Option<NodeLiveness>,
    nodes: watch::Receiver<NodesByName>,
    main: Handle,
    watched: watch::Sender<WatchedNodes>,
    results: (mpsc::UnboundedSender<ProbeResult>, mpsc::UnboundedReceiver<ProbeResult>),
    looked_at: Time,
    is_look_due: bool,
}

impl NodeWatch {
    pub fn new(
        liveness: Option<NodeLiveness>,
        nodes: watch::Receiver<NodesByName>,
        watched: watch::Sender<WatchedNodes>,
        main: Handle,
    ) -> Self {
        let results = mpsc::unbounded_channel();
        Self { liveness, nodes, main, watched, results, looked_at: Time::ZERO, is_look_due: true }
    }

    /// When [`Self::follow_nodes`] has work without an input.
    pub(crate) fn due(&self) -> Time {
        let Some(liveness) = &self.liveness else { return Time::MAX };
        let next = if self.is_look_due { Time::ZERO } else { liveness.next_probe() };
        next.max(self.looked_at + LOOK_INTERVAL)
    }

    /// Waits for the result of a probe.
    pub(crate) async fn take_result(&mut self) {
        // Never closed: this has a sender.
        let Some(ProbeResult { node, sent, outcome }) = self.results.1.recv().await else { return };
        if let Some(liveness) = &mut self.liveness {
            liveness.note_probe(&node, sent, outcome, read_deadline_clock());
        }
        self.publish();
    }

    /// Sends the probes that are due, and publishes which nodes are dead. `signs` are those of all links; they are read
    /// at intervals only.
    pub(crate) fn follow_nodes(&mut self, signs: impl FnOnce() -> NodeSigns) {
        let now = read_deadline_clock();
        let Some(liveness) = &mut self.liveness else { return };
        self.is_look_due = now < self.looked_at + LOOK_INTERVAL;
        if self.is_look_due {
            return;
        }
        self.looked_at = now;
        liveness.note_signs(&signs(), now);
        let nodes = self.nodes.borrow();
        liveness.retain_nodes(|name| nodes.contains_key(name));
        let limit = liveness.answer_limit();
        for node in liveness.due_probes(now) {
            // It has only nodes that exist.
            let ends =
                nodes[&node].0.iter().map(|address| SocketAddr::new(*address, NODE_PROBE_PORT));
            let (ends, results) = (ends.collect::<Vec<_>>(), self.results.0.clone());
            self.main.spawn(async move {
                let outcome = probe_node(ends, limit).await;
                // It ends with the thread.
                let _ = results.send(ProbeResult { node, sent: now, outcome });
            });
        }
        drop(nodes);
        self.publish();
    }

    fn publish(&self) {
        let Some(liveness) = &self.liveness else { return };
        let watched = WatchedNodes { alive: liveness.count_watched(), dead: liveness.dead_nodes() };
        self.watched.send_if_modified(|known| {
            let is_new = *known != watched;
            *known = watched;
            is_new
        });
    }
}

/// Probes all addresses of a node at once: one answer is enough.
async fn probe_node(ends: Vec<SocketAddr>, limit: Duration) -> ProbeOutcome {
    let outcomes = join_all(ends.into_iter().map(|end| probe_address(end, limit))).await;
    let has = |outcome| outcomes.contains(&outcome);
    if has(ProbeOutcome::Answered) {
        ProbeOutcome::Answered
    } else if has(ProbeOutcome::Unanswered) {
        ProbeOutcome::Unanswered
    } else {
        ProbeOutcome::NotSent
    }
}

async fn probe_address(end: SocketAddr, limit: Duration) -> ProbeOutcome {
    let Ok(connected) = timeout(limit, TcpStream::connect(end)).await else {
        return ProbeOutcome::Unanswered;
    };
    match connected.map_err(|error| error.kind()) {
        Ok(_) | Err(ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => {
            ProbeOutcome::Answered
        }
        Err(ErrorKind::HostUnreachable | ErrorKind::TimedOut) => ProbeOutcome::Unanswered,
        // For example, this node has no route, or no free port.
        Err(_) => ProbeOutcome::NotSent,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn a_kernel_answers_each_probe_of_a_port_where_nothing_listens() {
        let limit = Duration::from_secs(60);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let end = socket.local_addr().unwrap();
        // More than the accept queue of a listener takes that stands still.
        for _ in 0..500 {
            assert_eq!(probe_node(vec![end], limit).await, ProbeOutcome::Answered);
        }
        // A listener is an answer, too.
        let listener = socket.listen(1).unwrap();
        assert_eq!(probe_node(vec![end], limit).await, ProbeOutcome::Answered);
        drop(listener);
        assert_eq!(probe_node(vec![end], limit).await, ProbeOutcome::Answered);
        // A connection to the broadcast address fails on this machine.
        let nowhere = SocketAddr::from(([255, 255, 255, 255], end.port()));
        assert_eq!(probe_node(vec![nowhere], limit).await, ProbeOutcome::NotSent);
        assert_eq!(probe_node(vec![nowhere, end], limit).await, ProbeOutcome::Answered);
        assert_eq!(probe_node(Vec::new(), limit).await, ProbeOutcome::NotSent);
    }
}
