//! Serves the agent's report to `millrace status`, over a socket named after the pin directory.
//! Only root and the agent's own user get a response.
//!
//! The socket's name is abstract, so no directory has to be visible to both the agent and the
//! command (a container and its host may share none), and the name is freed when the process ends.
//! It exists in the agent's own network namespace, like the agent's interfaces.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use lb_announce::LinkView;
use lb_connections::{AdmissionLimits, Room, accept_all};
use lb_rules::model::ServiceName;
use lb_speakers::bgp::BgpView;
use lb_waits::{LongWait, Waits};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use super::Health;

const LIMITS: AdmissionLimits = AdmissionLimits::new(16, 0, 0);
/// How long a command waits for the agent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between attempts to bind the socket: its previous owner may be ending.
const RETRY: Duration = Duration::from_millis(500);
/// Only the first problems are listed; all are counted.
const MOST_PROBLEMS: usize = 50;

/// An agent's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    pub process: u32,
    pub version: String,
    pub node_name: String,
    pub started: Timestamp,
    /// Results of `/healthz` and `/livez`.
    pub healthz: bool,
    pub livez: bool,
    /// When changes were last programmed.
    pub last_sync: Option<Timestamp>,
    pub services: usize,
    pub service_ports: usize,
    /// Why changes are waiting, if any are.
    pub waiting: Option<String>,
    /// Why interfaces or addresses of this node are missing in the maps, if any are. Writing them
    /// is retried.
    #[serde(default)]
    pub network: Option<String>,
    /// Entries for which a map has no room, by map.
    pub without_room: BTreeMap<String, usize>,
    /// Interfaces with problems, and the reasons.
    pub devices: BTreeMap<String, String>,
    /// At most `MOST_PROBLEMS`.
    pub problems: Vec<String>,
    pub services_with_problems: usize,
    /// Interfaces on which addresses are announced.
    #[serde(default)]
    pub announcements: Vec<LinkView>,
    #[serde(default)]
    pub bgp: BgpView,
    /// BGP peers that are not used, and why.
    #[serde(default)]
    pub bgp_problems: Vec<String>,
    /// BGP peers that do not select this node.
    #[serde(default)]
    pub bgp_peers_of_others: Vec<String>,
    /// What the agent has been waiting for for long; at most `MOST_PROBLEMS`.
    #[serde(default)]
    pub waits: Vec<LongWait>,
}

/// Updated by the agent with each change, read on request.
#[derive(Debug, Default)]
pub struct Condition(Mutex<ReportState>);

#[derive(Debug, Default)]
struct ReportState {
    programmed: (usize, usize),
    waiting: Option<String>,
    network: Option<String>,
    without_room: BTreeMap<String, usize>,
    devices: BTreeMap<String, String>,
    problems: BTreeMap<ServiceName, Vec<String>>,
    announcements: Option<Arc<Vec<LinkView>>>,
    bgp: Arc<BgpView>,
    bgp_problems: Vec<String>,
    bgp_peers_of_others: Vec<String>,
}

impl Condition {
    /// Replaces the problems of a Service.
    pub fn set_problems(&self, service: &ServiceName, problems: Vec<String>) {
        let mut state = self.state();
        if problems.is_empty() {
            state.problems.remove(service);
        } else {
            state.problems.insert(service.clone(), problems);
        }
    }

    pub fn set_devices(&self, problems: impl Iterator<Item = (String, String)>) {
        self.state().devices = problems.collect();
    }

    /// All changes are programmed: this many Services and service ports.
    pub fn record_programmed(
        &self,
        services_and_ports: (usize, usize),
        without_room: impl Iterator<Item = (&'static str, usize)>,
    ) {
        let mut state = self.state();
        state.programmed = services_and_ports;
        state.waiting = None;
        state.without_room = without_room.map(|(map, n)| (map.to_owned(), n)).collect();
    }

    /// A change cannot be programmed, and all later changes wait for it.
    pub fn waits(&self, why: String) {
        self.state().waiting = Some(why);
    }

    pub fn set_announcements(&self, links: Vec<LinkView>) {
        self.state().announcements = Some(Arc::new(links));
    }

    /// The interfaces on which addresses are announced; `None`: not known yet.
    pub fn announcements(&self) -> Option<Arc<Vec<LinkView>>> {
        self.state().announcements.clone()
    }

    pub fn set_bgp(&self, view: BgpView) {
        self.state().bgp = Arc::new(view);
    }

    pub fn bgp(&self) -> Arc<BgpView> {
        Arc::clone(&self.state().bgp)
    }

    pub fn set_bgp_peers_of_others(&self, names: Vec<String>) {
        self.state().bgp_peers_of_others = names;
    }

    pub fn set_bgp_problems(&self, problems: Vec<String>) {
        self.state().bgp_problems = problems;
    }

    /// Why interfaces or addresses of this node are missing in the maps; `None`: none is.
    pub fn set_network(&self, why: Option<String>) {
        self.state().network = why;
    }

    fn state(&self) -> MutexGuard<'_, ReportState> {
        // Each field is valid by itself, so the state is usable after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects the report.
pub struct Reporter {
    pub node_name: String,
    pub health: Arc<Health>,
    pub condition: Arc<Condition>,
    pub started: SystemTime,
    pub waits: Waits,
}

impl Reporter {
    pub fn report(&self) -> AgentReport {
        let health = self.health.report(Instant::now());
        let time = |time: SystemTime| Timestamp::try_from(time).ok();
        let state = self.condition.state();
        AgentReport {
            process: std::process::id(),
            version: lb_process::VERSION.to_owned(),
            node_name: self.node_name.clone(),
            started: time(self.started).unwrap_or_default(),
            healthz: health.healthz(),
            livez: health.livez(),
            last_sync: health.updated().and_then(time),
            services: state.programmed.0,
            service_ports: state.programmed.1,
            waiting: state.waiting.clone(),
            network: state.network.clone(),
            without_room: state.without_room.clone(),
            devices: state.devices.clone(),
            problems: state.problems.values().flatten().take(MOST_PROBLEMS).cloned().collect(),
            services_with_problems: state.problems.len(),
            announcements: state.announcements.as_deref().cloned().unwrap_or_default(),
            bgp: BgpView::clone(&state.bgp),
            bgp_problems: state.bgp_problems.clone(),
            bgp_peers_of_others: state.bgp_peers_of_others.clone(),
            waits: self.waits.long(Instant::now()).into_iter().take(MOST_PROBLEMS).collect(),
        }
    }

    /// Serves commands of root and of the agent's own user until it is aborted.
    pub async fn serve(self, address: SocketAddr) {
        let reporter = Arc::new(self);
        let listener = loop {
            match bind(&address) {
                Ok(listener) => break listener,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::debug!(error, "status socket not opened; retrying");
                    sleep(RETRY).await;
                }
            }
        };
        let room = Room::new(LIMITS);
        accept_all(listener, room, |stream, _| {
            let reporter = Arc::clone(&reporter);
            // A failed connection does not matter to the agent.
            async move { drop(reporter.respond(stream).await) }
        })
        .await;
    }

    async fn respond(&self, mut stream: UnixStream) -> io::Result<()> {
        let text = serde_json::to_vec(&self.report())?;
        stream.write_all(&text).await?;
        stream.shutdown().await
    }
}

fn bind(address: &SocketAddr) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(address)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// The socket address of the agent on a pin directory, which is identified by device and inode.
pub fn report_address(pin_path: &Path) -> io::Result<SocketAddr> {
    let directory = pin_path.metadata()?;
    let name = format!("millrace:{:x}:{:x}", directory.dev(), directory.ino());
    SocketAddr::from_abstract_name(name)
}

/// Asks the agent on a pin directory. `None`: no agent listens in this network namespace.
pub fn ask_agent(pin_path: &Path) -> Result<Option<AgentReport>> {
    let address = report_address(pin_path)?;
    let mut stream = match StdStream::connect_addr(&address) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error).context("the agent's socket can't be reached"),
    };
    // Any process may have bound this name.
    let peer = getsockopt(&stream, PeerCredentials)?.uid();
    let own = nix::unistd::geteuid().as_raw();
    ensure!([0, own].contains(&peer), "a process of user {peer} listens on the agent's socket");
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text).context("no response from the agent")?;
    Ok(Some(serde_json::from_str(&text).context("cannot parse the agent's response")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> Reporter {
        let (health, condition) = (Arc::new(Health::new(false)), Arc::new(Condition::default()));
        let (started, waits) = (SystemTime::now(), Waits::default());
        Reporter { node_name: "node".into(), health, condition, started, waits }
    }

    #[test]
    fn only_current_problems_are_reported() {
        let reporter = reporter();
        let web = ServiceName::new("default", "web");
        reporter.condition.set_problems(&web, vec!["wrong".to_owned()]);
        let report = reporter.report();
        assert_eq!((report.services_with_problems, report.problems.len()), (1, 1));
        reporter.condition.set_problems(&web, Vec::new());
        assert_eq!(reporter.report().services_with_problems, 0);
    }

    #[test]
    fn changes_wait_until_they_are_programmed() {
        let reporter = reporter();
        reporter.condition.waits("no memory".to_owned());
        assert_eq!(reporter.report().waiting.as_deref(), Some("no memory"));
        reporter.condition.record_programmed((1, 2), [("FRONTENDS4", 3)].into_iter());
        let report = reporter.report();
        assert_eq!((report.waiting, report.services, report.service_ports), (None, 1, 2));
        assert_eq!(report.without_room["FRONTENDS4"], 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_report_is_served_for_its_own_pin_directory_only() {
        let here = tempfile::tempdir().unwrap();
        let reporter = reporter();
        let expected = reporter.report();
        assert_eq!(ask_agent(here.path()).unwrap(), None);
        let address = report_address(here.path()).unwrap();
        tokio::spawn(reporter.serve(address));
        let report = loop {
            if let Some(report) = ask_agent(here.path()).unwrap() {
                break report;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(report, expected);
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(ask_agent(elsewhere.path()).unwrap(), None);
    }
}
