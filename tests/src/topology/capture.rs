//! Packet captures on an interface with tcpdump.

use anyhow::Result;

use super::{Host, Process, SOON};

/// Ends when dropped. A failing test prints what it has seen.
#[must_use = "it ends when dropped"]
pub struct Capture {
    process: Process,
}

impl Host {
    /// Starts to look at packets of a device, with a filter as in pcap-filter(7), or all.
    pub fn capture(&self, device: &str, filter: &str) -> Result<Capture> {
        let mut command = self.command("tcpdump");
        // As root, for that is who may write the log.
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

    /// Waits until a line has passed that contains something.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        self.process.wait_for_output(text, SOON)
    }
}
