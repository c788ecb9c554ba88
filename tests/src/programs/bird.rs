//! BIRD on a host.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::worlds::topology::{Host, Process, SOON, Topology, wait_until};

/// It runs until this is dropped.
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
        let mut command = host.urgent("bird");
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
}
