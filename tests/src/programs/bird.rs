//! BIRD on a host.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::worlds::topology::{Host, Process, SOON, Topology, wait_until};

/// A session of BFD as BIRD lists it.
#[derive(Debug)]
pub struct BirdBfdSession {
    address: String,
    interface: String,
    state: String,
    /// Since when it is in this state, in seconds of the day or of BIRD's life.
    since: f64,
}

/// Whether the session stayed in its state. BIRD computes the time of day from two clocks whenever it is asked, and
/// its last digits vary. A session that breaks and is up again takes longer than the time without packets, 300 ms.
impl PartialEq for BirdBfdSession {
    fn eq(&self, other: &Self) -> bool {
        let words = |it: &Self| [it.address.clone(), it.interface.clone(), it.state.clone()];
        words(self) == words(other) && (self.since - other.since).abs() < 0.25
    }
}

/// BIRD on a host. It runs until this is dropped.
pub struct Bird {
    host: Host,
    socket: PathBuf,
    process: Process,
}

impl Bird {
    pub fn start(topology: &Topology, host: &Host, configuration: &str) -> Result<Self> {
        let file = |suffix: &str| topology.directory().join(format!("{}.{suffix}", host.name()));
        let (path, socket) = (file("conf"), file("ctl"));
        fs::write(&path, configuration)?;
        // The socket of a daemon that ran before.
        let _ = fs::remove_file(&socket);
        let mut command = host.urgent_command("bird");
        command.args(["-f", "-c"]).arg(path).arg("-s").arg(&socket);
        let process = host.spawn(&mut command)?;
        let waited = wait_until("bird runs", SOON, || socket.exists());
        waited.with_context(|| process.output())?;
        Ok(Self { host: host.clone(), socket, process })
    }

    /// Ends it in order: it says goodbye, and removes its routes.
    pub fn end(self) -> Result<()> {
        self.process.terminate(SOON).map(drop)
    }

    /// The reply to a command of birdc.
    pub fn show(&self, command: &str) -> Result<String> {
        let socket = self.socket.to_str().context("UTF-8")?;
        self.host.run(["birdc", "-s", socket].into_iter().chain(command.split(' ')))
    }

    /// Its sessions of BFD, in the order in which it lists them.
    pub fn bfd_sessions(&self) -> Result<Vec<BirdBfdSession>> {
        let shown = self.show("show bfd sessions")?;
        // "bfd1:" and titles, then: address, interface, state, since when, and intervals, which may still change.
        let lines = shown.lines().skip_while(|line| !line.starts_with("IP address")).skip(1);
        let sessions = lines.map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            let mut word = || words.next().with_context(|| shown.clone());
            let (address, interface, state) = (word()?, word()?, word()?);
            let since = word()?.split(':').try_fold(0.0, |seconds, part| {
                part.parse::<f64>().map(|part| seconds * 60.0 + part)
            })?;
            Ok(BirdBfdSession { address, interface, state, since })
        });
        sessions.collect()
    }
}
