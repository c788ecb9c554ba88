//! `millrace bfd`.

use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use lb_speakers::bfd::BfdView;

use super::bgp::{read_bgp, seconds_since};
use super::options::check_readable;
use crate::cli::output::{self, Output, Row, format_age};

pub const EXAMPLES: &str = "\
Examples:
  millrace bfd
  Why a session went down, and the packets of both sides:
    millrace bfd tor-1 -o wide
  Sessions that are not up:
    millrace bfd -o json | jq -r '.[] | select(.state != \"up\") | .name + \": \" + .diagnostic'

A session exists for each BGPPeer with `bfd`, once its BGP session has been established. The command
asks the agent of this node: run it in the agent's network namespace.";

#[derive(Debug, Args)]
pub struct Bfd {
    /// Name of a BGPPeer; NAMESPACE/NAME if it is one of MetalLB, such as metallb-system/tor-1
    peer: Option<String>,

    #[command(flatten)]
    output: Output,
}

pub fn show_bfd(options: &Bfd, pin_path: &Path) -> Result<()> {
    check_readable(pin_path)?;
    output::show_rows(&options.output, || {
        let mut sessions = read_bgp(pin_path)?.bfd;
        if let Some(name) = &options.peer {
            sessions.retain(|session| session.name == *name);
            ensure!(
                !sessions.is_empty(),
                "there is no BFD session with {name}: `millrace bgp {name}` shows whether it is configured"
            );
        }
        Ok(sessions)
    })
}

impl Row for BfdView {
    const PLURAL: &'static str = "BFD sessions";
    const HEADERS: &'static [&'static str] = &[
        "PEER",
        "ADDRESS",
        "LOCAL",
        "STATE",
        "SINCE",
        "DETECTION",
        "ANSWERED-BY",
        "DOWNS",
        "PEER-STATE",
        "DIAGNOSTIC",
        "PEER-DIAGNOSTIC",
        "RECEIVED",
        "SENT",
        "ANSWERS",
        "ID",
        "PEER-ID",
        "PROBLEM",
    ];
    const NARROW: usize = 8;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            if self.multihop { format!("{} (multihop)", self.peer) } else { self.peer.clone() },
            self.local.clone(),
            self.state.clone(),
            format_age(seconds_since(self.since)),
            format!("{}ms", self.detection_time_ms),
            if self.in_kernel { "kernel" } else { "agent" }.to_owned(),
            self.downs.to_string(),
            self.peer_state.clone(),
            self.diagnostic.clone(),
            self.peer_diagnostic.clone(),
            self.packets_received.to_string(),
            self.packets_sent.to_string(),
            self.answers.to_string(),
            self.local_discriminator.to_string(),
            self.peer_discriminator.to_string(),
            self.problem.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_cell() {
        let session =
            BfdView { name: "tor".into(), in_kernel: true, multihop: true, ..BfdView::default() };
        let cells = session.cells();
        assert_eq!(cells.len(), BfdView::HEADERS.len());
        assert_eq!((cells[1].as_str(), cells[6].as_str()), (" (multihop)", "kernel"));
    }
}
