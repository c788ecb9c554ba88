//! FRR's daemons on a host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::worlds::topology::{Host, Process, SOON, Topology, wait_until};

/// A configuration of bfdd: profiles for peers of bgpd.
pub const BFD_PROFILES: &str = "\
bfd
 profile fast
  receive-interval 100
  transmit-interval 100
 exit
 profile slow
  detect-multiplier 5
  receive-interval 200
  transmit-interval 200
 exit
exit
";

/// Daemons of FRR on a host. They run until this is dropped.
pub struct Frr {
    host: Host,
    directory: PathBuf,
    processes: Vec<Process>,
    /// Whether they need not wait for other processes of this machine.
    is_urgent: bool,
}

impl Frr {
    /// Starts zebra and these daemons, each with its configuration.
    pub fn start(topology: &Topology, host: &Host, daemons: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(topology, host, daemons, true)
    }

    /// Starts zebra and these daemons, with the priority of all processes.
    pub fn start_ordinary(
        topology: &Topology,
        host: &Host,
        daemons: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_with(topology, host, daemons, false)
    }

    fn start_with(
        topology: &Topology,
        host: &Host,
        daemons: &[(&str, &str)],
        is_urgent: bool,
    ) -> Result<Self> {
        let directory = topology.directory().join(format!("{}-frr", host.name()));
        // Of daemons that ran before.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        // The daemons change to a user of their own, which creates their sockets.
        fs::set_permissions(topology.directory(), Permissions::from_mode(0o711))?;
        fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
        let mut frr = Self { host: host.clone(), directory, processes: Vec::new(), is_urgent };
        for (daemon, configuration) in [("zebra", "")].iter().chain(daemons) {
            frr.start_daemon(daemon, configuration)?;
        }
        Ok(frr)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn start_daemon(&mut self, daemon: &str, configuration: &str) -> Result<()> {
        let file = |suffix: &str| self.file(&format!("{daemon}.{suffix}"));
        fs::write(file("conf"), configuration)?;
        let program = format!("/usr/lib/frr/{daemon}");
        let mut command = match self.is_urgent {
            true => self.host.urgent_command(program),
            false => self.host.command(program),
        };
        command.arg("-f").arg(file("conf")).arg("-i").arg(file("pid"));
        command.args(["-A", "127.0.0.1", "--log", "stdout"]);
        command.arg("--vty_socket").arg(&self.directory);
        command.arg("-z").arg(self.file("zserv.api"));
        if daemon == "bfdd" {
            command.arg("--bfdctl").arg(self.file("bfdd.sock"));
        }
        let process = self.host.spawn(&mut command)?;
        let socket = file("vty");
        let waited = wait_until(&format!("{daemon} runs"), SOON, || socket.exists());
        waited.with_context(|| process.output())?;
        self.processes.push(process);
        Ok(())
    }

    /// Ends them in order: they say goodbye, and remove their routes.
    pub fn end(self) -> Result<()> {
        let all = self.processes.into_iter().rev();
        all.map(|process| process.terminate(SOON)).try_for_each(|ended| ended.map(drop))
    }

    /// The reply to a command of vtysh.
    pub fn show(&self, daemon: &str, command: &str) -> Result<String> {
        let mut shell = self.host.command("vtysh");
        shell.arg("--vty_socket").arg(&self.directory).args(["-d", daemon, "-c", command]);
        let output = shell.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The reply to a command of vtysh that ends in `json`.
    pub fn json(&self, daemon: &str, command: &str) -> Result<Value> {
        let text = self.show(daemon, command)?;
        serde_json::from_str(&text).with_context(|| text)
    }
}
