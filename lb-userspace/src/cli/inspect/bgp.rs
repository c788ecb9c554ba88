//! `millrace bgp`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use lb_speakers::bgp::{BgpView, PeerView, RouteView};
use serde::Serialize;

use super::options::check_readable;
use crate::cli::output::{
    self, Output, OutputFormat, Row, align_all, format_age, print_document, write_text,
};

pub const EXAMPLES: &str = "\
Examples:
  millrace bgp
  The session with one peer, and what is advertised to it:
    millrace bgp tor-1
  Peers without a session:
    millrace bgp -o json | jq -r '.[] | select(.state != \"Established\") | .name + \": \" + .lastFailure'
  Follow changes:
    millrace bgp --watch

The command asks the agent of this node: run it in the agent's network namespace.";

#[derive(Debug, Args)]
pub struct Bgp {
    /// Name of a BGPPeer; NAMESPACE/NAME if it is one of MetalLB, such as metallb-system/tor-1
    peer: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// A peer, and what is advertised to it.
#[derive(Serialize)]
struct Detail {
    #[serde(flatten)]
    peer: PeerView,
    routes: Vec<RouteView>,
}

pub fn show_bgp(options: &Bgp, pin_path: &Path) -> Result<()> {
    check_readable(pin_path)?;
    let Some(name) = &options.peer else {
        return output::show_rows(&options.output, || Ok(read_bgp(pin_path)?.peers));
    };
    let BgpView { peers, mut routes, .. } = read_bgp(pin_path)?;
    let peer = peers.into_iter().find(|peer| peer.name == *name);
    let peer = peer.with_context(|| {
        format!("this node has no BGP peer {name}: `millrace bgp` lists those it has")
    })?;
    routes.retain(|route| route.peers.contains(name));
    let detail = Detail { peer, routes };
    match options.output.format {
        OutputFormat::Json | OutputFormat::Yaml => print_document(&detail, options.output.format),
        OutputFormat::Name => write_text(&format!("{name}\n")),
        OutputFormat::Table | OutputFormat::Wide => write_text(&described(&detail)),
    }
}

pub(super) fn read_bgp(pin_path: &Path) -> Result<BgpView> {
    match lb_status::ask_agent(pin_path)? {
        Some(report) => Ok(report.bgp),
        None => bail!(
            "no agent answers in this network namespace. Routers keep its routes for the time of a graceful restart only"
        ),
    }
}

impl Row for PeerView {
    const PLURAL: &'static str = "BGP peers";
    const HEADERS: &'static [&'static str] = &[
        "PEER",
        "ADDRESS",
        "AS",
        "STATE",
        "SINCE",
        "PREFIXES",
        "RECEIVED",
        "SENT",
        "LOCAL-AS",
        "FAMILIES",
        "HOLD",
        "ENDED",
        "BFD",
        "LAST-FAILURE",
    ];
    const NARROW: usize = 8;

    fn cells(&self) -> Vec<String> {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let address = match &self.peer_address {
            Some(address) if *address != self.peer => format!("{address}%{}", self.peer),
            _ => self.peer.clone(),
        };
        let families = (!self.families.is_empty()).then(|| self.families.join(","));
        vec![
            self.name.clone(),
            address,
            text(self.peer_asn.map(|number| number.to_string())),
            if self.draining { format!("{} (draining)", self.state) } else { self.state.clone() },
            format_age(seconds_since(self.since)),
            self.prefixes_advertised.to_string(),
            self.messages_received.to_string(),
            self.messages_sent.to_string(),
            self.local_asn.to_string(),
            text(families),
            text(self.hold_time_seconds.map(|seconds| format!("{seconds}s"))),
            self.ended.to_string(),
            text(self.bfd.clone()),
            text(self.last_failure.clone()),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub(super) fn seconds_since(time: Timestamp) -> u64 {
    Timestamp::now().duration_since(time).as_secs().unsigned_abs()
}

fn described(detail: &Detail) -> String {
    let Detail { peer, routes } = detail;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<19}{value}");
    };
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    line("Peer", &format!("{} ({})", peer.name, peer.peer));
    line("State", &format!("{} for {}", peer.state, format_age(seconds_since(peer.since))));
    line("Last failure", peer.last_failure.as_deref().unwrap_or("none"));
    let addresses = peer.local_address.iter().zip(&peer.peer_address);
    let addresses = addresses.map(|(local, other)| format!("{local} -> {other}")).next();
    line("Connection", &or_dash(addresses));
    let remote = or_dash(peer.peer_asn.map(|number| number.to_string()));
    line("AS", &format!("local {}, peer {remote}", peer.local_asn));
    let identifiers = [peer.local_identifier, peer.identifier]
        .map(|identifier| or_dash(identifier.map(|identifier| identifier.to_string())));
    line("Identifier", &format!("local {}, peer {}", identifiers[0], identifiers[1]));
    line("Families", &or_dash((!peer.families.is_empty()).then(|| peer.families.join(", "))));
    line("Hold time", &or_dash(peer.hold_time_seconds.map(|seconds| format!("{seconds} s"))));
    let yes = |is: bool| if is { "yes" } else { "no" };
    line("Graceful restart", yes(peer.graceful_restart));
    line("Password", yes(peer.authenticated));
    line("BFD", peer.bfd.as_deref().unwrap_or("no"));
    line("Draining", yes(peer.draining));
    let sent = if peer.complete { "" } else { " so far" };
    line("Prefixes", &format!("{} advertised{sent}", peer.prefixes_advertised));
    let Counts { messages, sessions } = counts(peer);
    line("Messages", &messages);
    line("Sessions", &sessions);
    line("Ignored", &format!("{} prefixes announced by the peer", peer.prefixes_discarded));
    let header = ["PREFIX", "LOCAL-PREF", "COMMUNITIES"].map(str::to_owned).to_vec();
    let rows = routes.iter().map(|route| {
        let preference = or_dash(route.local_preference.map(|preference| preference.to_string()));
        let communities =
            or_dash((!route.communities.is_empty()).then(|| route.communities.join(" ")));
        vec![route.prefix.to_string(), preference, communities]
    });
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    text + "\n" + &align_all(&rows)
}

struct Counts {
    messages: String,
    sessions: String,
}

fn counts(peer: &PeerView) -> Counts {
    let PeerView { messages_received, messages_sent, malformed_updates, .. } = peer;
    Counts {
        messages: format!(
            "{messages_sent} sent, {messages_received} received, {malformed_updates} malformed"
        ),
        sessions: format!("{} established, {} ended", peer.established, peer.ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_described_with_its_routes() {
        let peer = PeerView {
            name: "tor".into(),
            peer: "192.0.2.1".into(),
            state: "Established".into(),
            since: Timestamp::now(),
            prefixes_advertised: 1,
            complete: true,
            ..PeerView::default()
        };
        let route = RouteView {
            prefix: "192.0.2.9/32".parse().unwrap(),
            local_preference: None,
            communities: vec!["no-export".into()],
            peers: ["tor".to_owned()].into(),
        };
        assert_eq!(peer.cells().len(), PeerView::HEADERS.len());
        let text = described(&Detail { peer, routes: vec![route] });
        assert!(text.contains("Prefixes           1 advertised\n"), "{text}");
        assert!(text.ends_with("192.0.2.9/32   -            no-export\n"), "{text}");
    }
}
