//! Runs the built `millrace` on a host.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::worlds::topology::{Host, Process, SOON};

/// Small maps, which bpftool can dump: it reads element by element, which takes ten seconds with
/// the default of 262,144 flows.
pub const SMALL_MAPS: [&str; 6] =
    ["--max-service-ports", "64", "--max-endpoints", "256", "--max-flows", "1024"];

/// Where an agent reads its objects.
#[derive(Clone, Copy)]
pub enum AgentSource<'a> {
    Manifests(&'a Path),
    /// The cluster of this kubeconfig.
    Cluster(&'a Path),
}

/// A running agent.
pub struct Agent {
    process: Process,
    pin_path: PathBuf,
}

impl Agent {
    /// Starts an agent with manifests and one device, and waits until it is ready.
    pub fn start(
        node: &Host,
        pin_path: &Path,
        manifests: &Path,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        let mut agent =
            Self::launch(node, pin_path, AgentSource::Manifests(manifests), device, more)?;
        agent.process.wait_for_output("ready service_ports=", SOON)?;
        Ok(agent)
    }

    /// Starts an agent without waiting.
    pub fn launch(
        node: &Host,
        pin_path: &Path,
        source: AgentSource<'_>,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        Self::launch_by(node.command(program()?), node, pin_path, source, device, more)
    }

    /// Starts an agent without waiting, which need not wait for other processes of this machine: other nodes take one
    /// for dead that does not run for 300 ms.
    pub fn launch_urgent(
        node: &Host,
        pin_path: &Path,
        source: AgentSource<'_>,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        Self::launch_by(node.urgent_command(program()?), node, pin_path, source, device, more)
    }

    fn launch_by(
        mut command: Command,
        node: &Host,
        pin_path: &Path,
        source: AgentSource<'_>,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        let (option, path) = match source {
            AgentSource::Manifests(path) => ("--manifests", path),
            AgentSource::Cluster(path) => ("--kubeconfig", path),
        };
        command
            .args(["agent", "--device", device, option])
            .arg(path)
            .arg("--pin-path")
            .arg(pin_path)
            .args(more);
        // The tests' wires are veth devices, which `auto` leaves to tc.
        if !more.contains(&"--xdp-mode") {
            command.args(["--xdp-mode", "native"]);
        }
        if !more.contains(&"--node-name") {
            command.args(["--node-name", "node"]);
        }
        // Never attach to the machine's own processes.
        if !more.contains(&"--cgroup") {
            command.arg("--cgroup").arg(node.cgroup());
        }
        let process = node.spawn(&mut command)?;
        Ok(Self { process, pin_path: pin_path.to_owned() })
    }

    /// Waits for a text in the output. Fails if the process exits before.
    pub fn wait_for_output(&mut self, text: &str) -> Result<()> {
        self.process.wait_for_output(text, SOON)
    }

    /// How many steps the agent has taken until it was ready.
    pub fn start_steps(&self) -> Result<u64> {
        let log = self.log();
        let (_, steps) = log.split_once("maps programmed steps=").with_context(|| log.clone())?;
        let digits: String = steps.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }

    /// Starts the agent with the embedded API, and waits until both are ready.
    pub fn standalone(
        node: &Host,
        pin_path: &Path,
        data: &Path,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        let mut command = node.command(program()?);
        command
            .args(["standalone", "--node-name", "node", "--device", device])
            .args(more)
            .arg("--data-dir")
            .arg(data)
            .arg("--pin-path")
            .arg(pin_path)
            .arg("--cgroup")
            .arg(node.cgroup());
        let mut process = node.spawn(&mut command)?;
        process.wait_for_output("ready service_ports=", SOON)?;
        Ok(Self { process, pin_path: pin_path.to_owned() })
    }

    /// Runs a command that reads the maps; returns its output.
    pub fn get(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program()?);
        let output = command.arg("--pin-path").arg(&self.pin_path).args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).context("millrace prints UTF-8")
    }

    /// The counter of a reason.
    pub fn counted(&self, reason: &str) -> Result<u64> {
        let counters = self.get(&["counters", "-o", "json"])?;
        let rows: Vec<Value> = serde_json::from_str(&counters)?;
        let found = rows.iter().find(|row| row["reason"] == reason);
        found.and_then(|row| row["packets"].as_u64()).context(counters)
    }

    /// The number of flows that were opened to a frontend, given by its address and port or their end, such as `:80`.
    pub fn new_flows(&self, frontend: &str) -> Result<u64> {
        let rows: Vec<Value> = serde_json::from_str(&self.get(&["frontends", "-o", "json"])?)?;
        let found = rows
            .iter()
            .find(|row| row["address"].as_str().is_some_and(|address| address.ends_with(frontend)));
        Ok(found.and_then(|row| row["traffic"]["newFlows"].as_u64()).unwrap_or(0))
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Terminates the agent; returns its whole log.
    pub fn end(mut self) -> Result<String> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(SOON)?;
        ensure!(status.success(), "{status}: {}", self.process.output());
        Ok(self.process.output())
    }

    pub fn terminate(self) -> Result<ExitStatus> {
        self.process.terminate(SOON)
    }

    /// Kills the agent, like a crash.
    pub fn kill(self) {
        self.process.kill();
    }
}

/// The path of the built agent: set by xtask, otherwise beside the test programs.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os("MILLRACE_BIN") {
        return Ok(path.into());
    }
    let mut directory = env::current_exe()?;
    directory.pop();
    if directory.ends_with("deps") {
        directory.pop();
    }
    let program = directory.join("millrace");
    ensure!(program.exists(), "{} is not built; `cargo xtask test` builds it", program.display());
    Ok(program)
}
