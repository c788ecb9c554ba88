//! Packet captures on an interface with tcpdump.

use anyhow::Result;

use super::{Host, Process, SOON};

/// A running tcpdump, which ends when dropped. A failing test prints its output.
#[must_use = "it ends when dropped"]
pub struct Capture {
    process: Process,
}

impl Host {
    /// Starts a capture on a device with a filter as in pcap-filter(7), which may be empty.
    pub fn capture(&self, device: &str, filter: &str) -> Result<Capture> {
        let mut command = self.command("tcpdump");
        // As root, who can write the log.
        command.args(["-i", device, "-nn", "-vv", "-e", "-Z", "root"]);
        command.args(["--immediate-mode", "-l"]).args(filter.split_whitespace());
        let mut process = self.spawn(&mut command)?;
        process.wait_for_output("listening on", SOON)?;
        Ok(Capture { process })
    }
}

impl Capture {
    /// Returns the output so far, one or more lines per packet.
    pub fn lines(&self) -> Vec<String> {
        let output = self.process.output();
        let lines = output.lines().skip_while(|line| !line.contains("listening on")).skip(1);
        lines.map(str::to_owned).collect()
    }

    /// Waits for a line that contains a text.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        self.process.wait_for_output(text, SOON)
    }

    /// Waits until a condition holds for a line. Lines come in the order of their packets, so what is not there then was
    /// not sent before.
    pub fn wait_until_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<()> {
        self.process.wait_until_so(what, SOON, |process| process.output().lines().any(&is_it))
    }
}
