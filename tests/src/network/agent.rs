//! The built `millrace`, running on a host.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Result, ensure};

use super::command::{Process, output};
use super::host::Host;

/// An agent on a node.
pub struct Agent {
    host: Host,
    process: Process,
    pin_path: PathBuf,
}

impl Agent {
    /// Starts it on some manifests and one device, and waits until it is ready.
    pub fn start(node: &Host, pin_path: &Path, manifests: &Path, device: &str) -> Result<Self> {
        Self::start_with(node, pin_path, manifests, device, &[])
    }

    pub fn start_with(
        node: &Host,
        pin_path: &Path,
        manifests: &Path,
        device: &str,
        more: &[&str],
    ) -> Result<Self> {
        let mut command = node.command(program()?);
        command
            .args(["run", "--node-name", "node", "--device", device])
            .arg("--manifests")
            .arg(manifests)
            .arg("--pin-path")
            .arg(pin_path)
            .args(more);
        let mut process = node.start(command)?;
        process.wait_for("ready:")?;
        Ok(Self { host: node.clone(), process, pin_path: pin_path.to_owned() })
    }

    /// What `millrace get` prints.
    pub fn get(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.host.command(program()?);
        output(command.arg("--pin-path").arg(&self.pin_path).arg("get").args(arguments))
    }

    pub fn said(&self) -> String {
        self.process.said()
    }

    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.process.terminate()
    }

    /// As a crash would.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()
    }
}

/// Where the built agent is: told by xtask, else beside the tests' own programs.
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
