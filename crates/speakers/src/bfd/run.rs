//! All sessions of this node: reads packets, lets timers expire, and collects changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lb_bfd::session::StateChange;
use lb_bfd::{BfdState, ControlPacket};
use lb_kernel::BfdSessions;
use tokio::net::UdpSocket;

use super::config::WantedSession;
use super::io::{PacketReceivers, ReceivedPacket};
use super::session::MonitoredPath;
use super::view::{BfdView, view_session};

/// All sessions of this node, by the names of their peers.
pub struct PathMonitor {
    began: Instant,
    /// Without it, the agent itself sends all packets.
    kernel: Option<BfdSessions>,
    receivers: PacketReceivers,
    sessions: BTreeMap<String, MonitoredPath>,
    /// Packets that no session took, since the start.
    refused: u64,
}

impl PathMonitor {
    /// `began`: all times are durations since then.
    pub fn new(kernel: Option<BfdSessions>, began: Instant) -> Self {
        Self {
            began,
            kernel,
            receivers: PacketReceivers::default(),
            sessions: BTreeMap::new(),
            refused: 0,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Starts a session, or restarts it if its path has changed. With other settings it stays up, and so
    /// does one that an earlier agent left in the kernel.
    pub fn start_session(&mut self, name: &str, wanted: &WantedSession) {
        let now = self.now();
        if let Some(running) = self.sessions.get_mut(name)
            && running.wanted.path == wanted.path
        {
            if running.wanted != *wanted {
                running.configure(wanted, now, self.kernel.as_mut());
            }
            return;
        }
        self.end_session(name);
        let running = MonitoredPath::new(name, wanted.clone(), self.kernel.as_mut(), now);
        self.sessions.insert(name.to_owned(), running);
        self.open_sockets();
    }

    /// Ends a session deliberately; its last packet says so to the peer.
    pub fn end_session(&mut self, name: &str) {
        let now = self.now();
        if let Some(mut running) = self.sessions.remove(name) {
            running.end(now, self.kernel.as_mut());
        }
        self.open_sockets();
    }

    /// Runs these sessions, and ends all others.
    pub(crate) fn set_sessions(&mut self, wanted: &BTreeMap<&str, WantedSession>) {
        let others = self.sessions.keys().filter(|name| !wanted.contains_key(name.as_str()));
        for name in others.cloned().collect::<Vec<String>>() {
            self.end_session(&name);
        }
        for (name, wanted) in wanted {
            self.start_session(name, wanted);
        }
    }

    pub fn session_state(&self, name: &str) -> Option<BfdState> {
        self.sessions.get(name).map(|running| running.session.state())
    }

    pub fn deadline(&self) -> Option<Duration> {
        let sessions = self.sessions.values().filter_map(MonitoredPath::next_timeout);
        sessions.chain(self.receivers.retry_at()).min()
    }

    /// The sockets on which packets arrive.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.receivers.sockets()
    }

    /// Reads what has arrived, and does what is due. Returns the sessions that have changed.
    pub fn handle_due(&mut self) -> Vec<(String, StateChange)> {
        if self.receivers.retry_at().is_some_and(|at| at <= self.now()) {
            self.open_sockets();
        }
        for arrived in self.receivers.receive_packets() {
            self.handle_packet(&arrived);
        }
        let now = self.now();
        let mut changes = Vec::new();
        for (name, running) in &mut self.sessions {
            running.expire_timers(now, self.kernel.as_mut());
            changes.extend(running.take_changes().map(|change| (name.clone(), change)));
        }
        changes
    }

    fn handle_packet(&mut self, arrived: &ReceivedPacket) {
        let now = self.now();
        let packet = match ControlPacket::decode(&arrived.octets) {
            Ok(packet) => packet,
            Err(fault) => {
                self.refused += 1;
                tracing::debug!(from = %arrived.from, reason = %fault, "bfd packet discarded");
                return;
            }
        };
        let mut sessions = self.sessions.values_mut();
        match sessions.find(|running| running.is_for(arrived, &packet)) {
            Some(running) => running.receive_packet(now, &packet, self.kernel.as_mut()),
            None => {
                self.refused += 1;
                tracing::debug!(from = %arrived.from, "bfd packet of no session discarded");
            }
        }
    }

    /// Opens the sockets that the sessions need, and closes the others.
    fn open_sockets(&mut self) {
        let wanted = self.sessions.values().map(|running| {
            let path = &running.wanted.path;
            (path.local.is_ipv4(), path.hops.port())
        });
        self.receivers.open_wanted(&wanted.collect(), self.began.elapsed());
    }

    pub fn views(&self) -> Vec<BfdView> {
        let view = |(name, running): (&String, &MonitoredPath)| {
            view_session(name, running, self.kernel.as_ref(), self.now())
        };
        self.sessions.iter().map(view).collect()
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }
}
