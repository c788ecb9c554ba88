//! The state of a BFD session, as commands and metrics show it.

use std::time::Duration;

use jiff::Timestamp;
use lb_bfd::BfdState;
use lb_kernel::{BfdSessions, Heard};
use serde::{Deserialize, Serialize};

use super::config::HopLimit;
use super::session::MonitoredPath;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BfdView {
    /// The BGP peer's.
    pub name: String,
    pub peer: String,
    pub local: String,
    pub multihop: bool,
    pub state: String,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// The state that the peer reports.
    pub peer_state: String,
    /// Why the session went down last; `none`: it did not.
    pub diagnostic: String,
    pub peer_diagnostic: String,
    /// After which time without a packet of the peer the path is broken.
    pub detection_time_ms: u64,
    pub interval_ms: Option<u64>,
    /// The kernel answers the peer, without the agent.
    pub in_kernel: bool,
    /// Packets that the kernel has answered since it does.
    pub answers: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    pub ups: u64,
    pub downs: u64,
    pub local_discriminator: u32,
    pub peer_discriminator: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl BfdView {
    pub fn is_up(&self) -> bool {
        self.state == BfdState::Up.to_string()
    }
}

pub(crate) fn view_session(
    name: &str,
    running: &MonitoredPath,
    kernel: Option<&BfdSessions>,
    now: Duration,
) -> BfdView {
    let (session, path) = (&running.session, &running.wanted.path);
    let heard = kernel.and_then(|kernel| kernel.heard(session.discriminator()).ok().flatten());
    let is_recent = |heard: &Heard| heard.answers > 0 && heard.age <= session.detection_time();
    let (remote, counters) = (session.remote(), session.counters());
    let age = now.saturating_sub(session.since());
    BfdView {
        name: name.to_owned(),
        peer: path.peer.to_string(),
        local: path.local.to_string(),
        multihop: path.hops != HopLimit::One,
        state: session.state().to_string(),
        since: Timestamp::now() - age,
        peer_state: remote.state.to_string(),
        diagnostic: session.diagnostic().to_string(),
        peer_diagnostic: remote.diagnostic.to_string(),
        detection_time_ms: session.detection_time().as_millis() as u64,
        interval_ms: session.send_interval().map(|interval| interval.as_millis() as u64),
        in_kernel: running.is_reflected() && heard.as_ref().is_some_and(is_recent),
        answers: heard.map_or(0, |heard| heard.answers),
        packets_sent: counters.sent,
        packets_received: counters.received,
        ups: counters.ups,
        downs: counters.downs,
        local_discriminator: session.discriminator(),
        peer_discriminator: remote.discriminator,
        problem: running.problem.clone(),
    }
}
