//! `millrace status`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use lb_announce::LinkView;
use lb_common::layout::map;
use lb_inspect::{Fill, FlowPhase, Severity, Status, StatusFindings};
use lb_kernel::Tables;
use lb_speakers::bgp::BgpView;

use super::options::{check_readable, open_tables};
use crate::cli::output::{OutputFormat, print_document, write_text};

pub const EXAMPLES: &str = "\
Examples:
  millrace status
  In a script: exits with 0 if healthy, with 1 if not
    millrace status >/dev/null || echo \"node is unhealthy\"
  millrace status -o json | jq -r '.problems[] | .severity + \": \" + .message'

Except for the agent's own report, everything is read from the kernel. Run this command
in the agent's network namespace: the agent's socket and interfaces are there.";

/// Width of the bars, in characters.
const BAR: usize = 20;

#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Output format
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    output: StatusFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum StatusFormat {
    #[default]
    Table,
    Json,
    Yaml,
}

pub fn show_status(options: &StatusOptions, pin_path: &Path) -> Result<ExitCode> {
    let status = Status::of(find(pin_path)?);
    match options.output {
        StatusFormat::Table => write_text(&described(&status))?,
        StatusFormat::Json => print_document(&status, OutputFormat::Json)?,
        StatusFormat::Yaml => print_document(&status, OutputFormat::Yaml)?,
    }
    Ok(if status.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn find(pin_path: &Path) -> Result<StatusFindings> {
    // Reports a missing data plane or missing permission.
    check_readable(pin_path)?;
    let survey = lb_kernel::survey_pins(pin_path)?;
    // Missing maps are a problem that the status reports.
    let is_complete = survey.maps.iter().all(|map| map.capacity.is_some());
    let used = if is_complete { used(&open_tables(pin_path)?)? } else { BTreeMap::new() };
    let report = lb_status::ask_agent(pin_path).map_err(|error| format!("{error:#}"));
    let features = lb_kernel::probe_features()?;
    Ok(StatusFindings { pin_path: pin_path.display().to_string(), survey, features, used, report })
}

/// The numbers of entries in the maps.
fn used(tables: &Tables) -> Result<BTreeMap<&'static str, u64>> {
    let snapshot = tables.snapshot()?;
    let mut used: BTreeMap<&str, u64> = BTreeMap::from([
        (map::FRONTENDS4, 0),
        (map::FRONTENDS6, 0),
        (map::MEMBERS, 0),
        (map::WEIGHTS, 0),
        (map::SOURCE_RANGES4, 0),
        (map::SOURCE_RANGES6, 0),
        (map::PEERS, 0),
        (map::TARGETS, 0),
        (map::EARLIER_OWNERS, 0),
        (map::SERVICE_NAMES, 0),
    ]);
    let by_family = |address: IpAddr, four, six| if address.is_ipv4() { four } else { six };
    for (key, _) in &snapshot.frontends {
        *used.entry(by_family(key.address, map::FRONTENDS4, map::FRONTENDS6)).or_default() += 1;
    }
    for side_entry in &snapshot.side_entries {
        *used.entry(side_entry.map()).or_default() += 1;
    }
    // Both families share the indexes.
    let backends = snapshot.backends.iter().filter(|found| found.backend.is_some()).count();
    used.insert(map::BACKEND_TRAFFIC, backends as u64);
    used.insert(
        map::POOL_SLOTS,
        snapshot.pools.iter().map(|found| u64::from(found.pool.size)).sum(),
    );
    used.insert(map::FLOWS4, tables.flow_states4().filter_map(FlowPhase::of).count() as u64);
    used.insert(map::FLOWS6, tables.flow_states6().filter_map(FlowPhase::of).count() as u64);
    Ok(used)
}

fn described(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<11}{value}");
    };
    line("Health", if status.healthy { "healthy" } else { "NOT HEALTHY" });
    line("Agent", &agent(status));
    if let Some(report) = &status.agent.report {
        line("", &programmed(report));
    }
    let pins = &status.pins;
    let missing = match pins.missing_maps.len() {
        0 => String::new(),
        missing => format!(", {missing} missing"),
    };
    line(
        "Pins",
        &format!("{}: {} maps{missing}, {} links", pins.path, pins.maps, pins.attachments),
    );
    let kernel = &status.kernel;
    let yes = |is: bool| if is { "yes" } else { "no" };
    let features = [("BTF", kernel.btf), ("tcx", kernel.tcx), ("JIT", kernel.jit)]
        .map(|(name, is)| format!("{name} {}", yes(is)));
    line("Kernel", &format!("Linux {}: {}", kernel.version, features.join(", ")));
    if status.devices.is_empty() {
        line("Devices", "none");
    }
    for (number, device) in status.devices.iter().enumerate() {
        let name = if number == 0 { "Devices" } else { "" };
        line(name, &format!("{}: {}", device.name, device.hooks.join(", ")));
    }
    let links = status.agent.report.iter().flat_map(|report| &report.announcements);
    for (number, link) in links.enumerate() {
        line(if number == 0 { "Announces" } else { "" }, &announced(link));
    }
    if let Some(bgp) = status.agent.report.as_ref().map(|report| &report.bgp)
        && !bgp.peers.is_empty()
    {
        line("BGP", &advertised(bgp));
    }
    line(
        "Processes",
        &format!("{} programs attached for processes on this node", status.process_programs),
    );
    text += "\nMaps\n";
    for fill in &status.maps {
        text += &bar(fill);
    }
    text += "\nProblems\n";
    if status.problems.is_empty() {
        text += "  none\n";
    }
    for trouble in &status.problems {
        let mark = if trouble.severity == Severity::Fault { "!" } else { "-" };
        let _ = writeln!(text, "  {mark} {}", trouble.message);
    }
    text
}

fn agent(status: &Status) -> String {
    let agent = &status.agent;
    match (&agent.report, agent.process) {
        (Some(report), process) => format!(
            "running: process {}, version {}, node {}, since {}",
            process.unwrap_or(report.process),
            report.version,
            report.node_name,
            ago(report.started)
        ),
        (None, Some(process)) => {
            format!("running: process {process}, not reachable in this network namespace")
        }
        (None, None) => "not running".to_owned(),
    }
}

fn programmed(report: &lb_status::AgentReport) -> String {
    let synced = report.last_sync.map_or("never".to_owned(), ago);
    let (services, ports) = (report.services, report.service_ports);
    let (services, ports) = (counted(services, "Service"), counted(ports, "service port"));
    format!("{services} with {ports} programmed; last change: {synced}")
}

fn announced(link: &LinkView) -> String {
    let here = link.addresses.iter().filter(|address| address.is_here()).count();
    let peers = link.peers.iter().filter(|peer| !peer.silent).count();
    format!(
        "{}: {here} of {}, heard {}, heartbeats {}",
        link.interface,
        plural(link.addresses.len(), "address", "addresses"),
        counted(peers, "other node"),
        if link.authenticated { "authenticated" } else { "not authenticated" }
    )
}

fn advertised(bgp: &BgpView) -> String {
    let established = bgp.peers.iter().filter(|peer| peer.is_established()).count();
    let prefixes = plural(bgp.routes.len(), "prefix", "prefixes");
    let draining = bgp.peers.iter().any(|peer| peer.draining);
    let draining = if draining { ", draining" } else { "" };
    let peers = counted(bgp.peers.len(), "peer");
    let up = bgp.bfd.iter().filter(|session| session.is_up()).count();
    let bfd = if bgp.bfd.is_empty() { String::new() } else { format!(", {up} watched by BFD") };
    format!("{prefixes} for {peers}, {established} established{bfd}{draining}")
}

fn counted(number: usize, what: &str) -> String {
    plural(number, what, &format!("{what}s"))
}

fn plural(number: usize, one: &str, several: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {several}") }
}

/// `2026-01-01T00:00:00Z (5 s ago)`
fn ago(time: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(time).as_secs().max(0);
    let ago = match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(time);
    format!("{whole} ({ago} ago)")
}

fn bar(fill: &Fill) -> String {
    // Bars of maps with few entries are not empty.
    let full = (fill.percent / 100.0 * BAR as f64).ceil().clamp(0.0, BAR as f64) as usize;
    let bar = "#".repeat(full);
    let Fill { map, used, capacity, percent } = fill;
    format!("  {map:<16} [{bar:<BAR$}] {percent:>5.1}%  {used} of {capacity}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_summed_up() {
        let link = LinkView { interface: "eth0".into(), ..LinkView::default() };
        assert_eq!(
            announced(&link),
            "eth0: 0 of 0 addresses, heard 0 other nodes, heartbeats not authenticated"
        );
    }

    #[test]
    fn bars_show_what_is_not_empty_and_never_more_than_all() {
        let shown = |used: u64| {
            let percent = used as f64;
            bar(&Fill { map: "PEERS".into(), used, capacity: 100, percent })
        };
        assert_eq!(shown(0), "  PEERS            [                    ]   0.0%  0 of 100\n");
        assert!(shown(1).contains("[#                   ]"));
        assert!(shown(100).contains("[####################] 100.0%"));
        assert!(shown(120).contains("[####################] 120.0%"));
    }
}
