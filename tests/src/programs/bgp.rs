//! What an agent says about its BGP peers.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::programs::agent::program;
use crate::worlds::topology::{Host, SOON, wait_until};

pub struct Speaker {
    node: Host,
    pins: PathBuf,
}

impl Speaker {
    /// The agent on a node with these pins.
    pub fn of(node: &Host, pins: PathBuf) -> Self {
        Self { node: node.clone(), pins }
    }

    /// The output of a command of millrace.
    pub fn show(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.command(program()?);
        command.args(arguments).arg("--pin-path").arg(&self.pins);
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn list(&self, what: &str) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.show(&[what, "-o", "json"])?)?)
    }

    pub fn peers(&self) -> Result<Vec<Value>> {
        self.list("bgp")
    }

    /// Waits until there are so many peers, and something holds for all.
    pub fn wait_for_peers(
        &self,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.wait("bgp", what, number, so)
    }

    /// Waits until the sessions of BFD are as expected.
    pub fn wait_for_paths(
        &self,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.wait("bfd", what, number, so)
    }

    fn wait(
        &self,
        list: &str,
        what: &str,
        number: usize,
        so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let mut last = Vec::new();
        let waited = wait_until(what, SOON, || {
            last = self.list(list).unwrap_or_default();
            last.len() == number && last.iter().all(&so)
        });
        waited.with_context(|| format!("{last:#?}"))
    }
}

pub fn is_established(peer: &Value) -> bool {
    peer["state"] == "Established" && peer["complete"] == true
}

/// Whether the kernel answers a router that BFD sees.
pub fn is_answered(session: &Value) -> bool {
    session["state"] == "up" && session["inKernel"] == true
}
