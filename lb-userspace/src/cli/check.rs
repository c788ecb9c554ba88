//! `millrace check`: whether this machine can run Millrace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lb_agent::KeyFile;
use lb_kernel::settings::XdpMode;
use lb_kernel::{
    AvailableMemory, CheckResult, Finding, agent_on, check_forwarding, check_routing,
    compute_memory, list_machine_findings, on_device, snat_ports,
};
use lb_network::{
    AnnouncingLink, Attachments, DeviceName, DeviceRole, DeviceSelector, NetworkWatch, XdpFeatures,
};

use super::agent::{build_runtime, wanted_sizes};
use super::{check_bgp, check_pools, output};
use crate::config::{Configuration, Effective, Problem, Problems};

#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: CheckFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    #[default]
    Table,
    Json,
}

pub(crate) fn check_machine(options: &CheckOptions, effective: &Effective) -> Result<()> {
    let configuration = &effective.configuration;
    let pin_path = &configuration.common.pin_path;
    let mut findings = list_machine_findings();
    findings.push(Finding::ok("configuration", "valid"));
    findings.push(room(configuration)?);
    findings.push(agent(pin_path)?);
    // `millrace status` reports an agent that does not reply.
    if let Ok(Some(report)) = lb_status::ask_agent(pin_path) {
        findings.extend(check_bgp::check_sessions(&report));
    }
    let mut bridges = Vec::new();
    match open_network(configuration)? {
        Ok(Network { attachments, links, features }) => {
            findings.extend(check_pools::check_pools(configuration, &links)?);
            findings.extend(devices(configuration, &attachments, features.as_ref())?);
            findings.extend(check_routing(&names(&attachments, DeviceRole::External)));
            bridges.extend(attachments.pod_bridges.into_iter().map(|bridge| bridge.name));
        }
        // As the agent reports it.
        Err(error) => {
            let fix = "Set --devices to the interfaces where clients connect; `ip link` lists them";
            findings.push(Finding::error("devices", format!("{error:#}"), fix));
        }
    }
    findings.push(snat_ports(configuration.agent.snat_ports));
    findings.push(heartbeats(configuration));
    findings.extend(check_forwarding(&bridges));
    findings.extend(kube_proxy());
    print_findings(options, &findings)
}

/// Checks what can be checked without a valid configuration.
pub(crate) fn check_without(options: &CheckOptions, problems: &Problems) -> Result<()> {
    const FIX: &str =
        "Fix it where it was set; `millrace config --check` checks only the configuration";
    let wrong = |problem: &Problem| Finding::error("configuration", problem.to_string(), FIX);
    let mut findings = list_machine_findings();
    findings.extend(problems.0.iter().map(wrong));
    findings.extend(kube_proxy());
    print_findings(options, &findings)
}

fn kube_proxy() -> Vec<Finding> {
    const CHECK: &str = "kube-proxy";
    const FIX: &str = "Millrace's programs come first, so both can run while one replaces the \
                        other; then delete kube-proxy's DaemonSet, and run `millrace cleanup \
                        --kube-proxy` on this node";
    let signs = lb_kube_proxy::find_signs();
    if signs.is_empty() {
        return vec![Finding::ok(CHECK, "no kube-proxy, and no rules of it")];
    }
    signs.into_iter().map(|message| Finding::warning(CHECK, message, FIX)).collect()
}

fn print_findings(options: &CheckOptions, findings: &[Finding]) -> Result<()> {
    output::write_text(&match options.output {
        CheckFormat::Json => serde_json::to_string_pretty(findings)? + "\n",
        CheckFormat::Table => table(findings),
    })?;
    match findings.iter().filter(|finding| finding.result == CheckResult::Error).count() {
        0 => Ok(()),
        errors => {
            bail!("this machine cannot run Millrace: {errors} of {} checks failed", findings.len())
        }
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let line = |finding: &Finding| {
        let result = match finding.result {
            CheckResult::Ok => "ok",
            CheckResult::Warning => "warning",
            CheckResult::Error => "ERROR",
        };
        let Finding { check, message, fix, .. } = finding;
        let fix = if fix.is_empty() { String::new() } else { format!("{:11}-> {fix}\n", "") };
        format!("{result:8}   {check:width$}   {message}\n{fix}")
    };
    findings.iter().map(line).collect()
}

/// Whether the maps fit into free memory.
fn room(configuration: &Configuration) -> Result<Finding> {
    let sizes = wanted_sizes(&configuration.agent).resolve(AvailableMemory::read(), None);
    let Some(bytes) = compute_memory(sizes)? else {
        return Ok(Finding::error(
            "programs",
            "this binary was built without the BPF programs",
            "Run `cargo xtask build-ebpf`, then build the agent again",
        ));
    };
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(fits(bytes, available(&text)))
}

/// Whether machines on the link that are not nodes can take part in announcing addresses.
fn heartbeats(configuration: &Configuration) -> Finding {
    let has_key = KeyFile::of(configuration.agent.tunnel_key_file.clone()).is_in_use();
    let announces = !configuration.load_balancer.load_balancer_addresses.is_empty();
    match (has_key, announces) {
        (true, _) => Finding::ok("heartbeats", "authenticated"),
        (false, true) => Finding::warning(
            "heartbeats",
            "not authenticated: any machine on the link can take over announced addresses",
            "Set --tunnel-key-file to the same file on all nodes",
        ),
        (false, false) => Finding::ok("heartbeats", "not authenticated; only sent with pools"),
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

fn fits(bytes: u64, available: Option<u64>) -> Finding {
    const FIX: &str = "Reduce --map-memory-percent, or --max-flows, --max-endpoints or --max-service-ports if they are set";
    let mebibytes = bytes >> 20;
    match available {
        Some(free) if bytes > free => {
            let message =
                format!("the maps need {mebibytes} MiB, but only {} MiB are free", free >> 20);
            Finding::error("memory", message, FIX)
        }
        Some(free) if bytes > free / 2 => {
            let message = format!("the maps need {mebibytes} of {} MiB free memory", free >> 20);
            Finding::warning("memory", message, FIX)
        }
        _ => Finding::ok("memory", format!("the maps need {mebibytes} MiB")),
    }
}

fn agent(pin_path: &Path) -> Result<Finding> {
    let path = pin_path.display();
    Ok(match agent_on(pin_path)? {
        None => Finding::ok("agent", format!("no agent is running on {path}")),
        Some(process) => {
            let process = process.map_or(String::new(), |process| format!(" (process {process})"));
            Finding::warning(
                "agent",
                format!("an agent{process} is running on {path}"),
                "A second agent waits until the first one stops, or needs a different --pin-path",
            )
        }
    })
}

type XdpSupport = BTreeMap<u32, XdpFeatures>;

/// This machine's interfaces.
struct Network {
    attachments: Attachments,
    /// Where addresses can be announced.
    links: Vec<AnnouncingLink>,
    features: Option<XdpSupport>,
}

/// Reads this machine's interfaces. The inner error is that of the configuration.
fn open_network(configuration: &Configuration) -> Result<Result<Network>> {
    let agent = &configuration.agent;
    let settings = lb_network::DeviceSettings {
        external: agent.devices.clone(),
        workload: agent.workload_devices.clone(),
        node_ports: agent.nodeport_addresses.clone(),
    };
    let (opened, features) = build_runtime()?.block_on(async {
        (NetworkWatch::open(settings).await, lb_network::read_xdp_features().await)
    });
    Ok(opened.map(|network| Network {
        attachments: network.attachments().clone(),
        links: network.links().borrow().clone(),
        features: features.ok().flatten(),
    }))
}

/// The interfaces of a role.
fn names(attachments: &Attachments, role: DeviceRole) -> Vec<&str> {
    let of = attachments.served.iter().filter(|(_, served)| served.role == role);
    of.map(|(device, _)| device.name.as_str()).collect()
}

/// Whether the configured interfaces exist, and whether programs can be attached to them.
fn devices(
    configuration: &Configuration,
    attachments: &Attachments,
    features: Option<&XdpSupport>,
) -> Result<Vec<Finding>> {
    let agent = &configuration.agent;
    let names = |role| names(attachments, role).join(", ");
    let mut findings: Vec<Finding> = [
        ("uplinks", DeviceRole::External),
        ("other interfaces", DeviceRole::Transit),
        ("pods' interfaces", DeviceRole::Workload),
    ]
    .into_iter()
    .map(|(check, role)| {
        let names = names(role);
        Finding::ok(check, if names.is_empty() { "none".to_owned() } else { names })
    })
    .collect();
    let named: Vec<&DeviceSelector> = agent
        .workload_devices
        .iter()
        .filter(|selector| !matches!(selector, DeviceSelector::Auto | DeviceSelector::None))
        .collect();
    if !named.is_empty() && names(DeviceRole::Workload).is_empty() {
        findings.push(Finding::warning(
            "pods' interfaces",
            "no interface matches --workload-devices",
            "Check --workload-devices if this node has pods, or leave it at auto",
        ));
    }
    findings.extend(attachments.refused.iter().map(|(device, refusal)| {
        let check = format!("device {}", device.name);
        Finding::error(&check, format!("unusable: {refusal}"), "Check --devices")
    }));
    let pin_path = &configuration.common.pin_path;
    for (device, served) in &attachments.served {
        for wire in &served.xdp {
            let reported = features.map(|features| features.get(&wire.index).copied());
            let finished = !attachments.unfinished.contains(wire);
            findings.push(driver(wire, reported, finished, agent.xdp_mode));
        }
        let met: BTreeSet<&DeviceName> = served.xdp.iter().chain([device]).collect();
        for device in met {
            let finished = !attachments.unfinished.contains(device);
            let with_xdp = served.xdp.contains(device) && agent.xdp_mode.is_for(finished);
            findings.push(on_device(&device.name, device.index, pin_path, with_xdp)?);
        }
    }
    Ok(findings)
}

/// The XDP support of a device. `reported`: the features that the kernel reports; `None` if the kernel
/// reports none at all, `Some(None)` if the driver has none.
fn driver(
    device: &DeviceName,
    reported: Option<Option<XdpFeatures>>,
    finished: bool,
    mode: XdpMode,
) -> Finding {
    let check = format!("XDP on {}", device.name);
    let by_tc = "tc is used instead, at a few times the CPU time per packet";
    match (mode, reported) {
        (XdpMode::Off, _) => Finding::ok(&check, "off, as configured"),
        (XdpMode::Auto, _) if !mode.is_for(finished) => {
            Finding::ok(&check, "not used: frames may come from this machine itself; tc is used")
        }
        (_, None) => Finding::ok(&check, "support unknown before Linux 6.3; the agent tries it"),
        (_, Some(Some(features))) if features.runs_programs() => {
            let sends =
                if features.sends() { "" } else { ", but cannot transmit: tc handles egress" };
            Finding::ok(&check, format!("supported by the driver{sends}"))
        }
        (XdpMode::Native, _) => Finding::error(
            &check,
            "not supported by the driver, but required by --xdp-mode native",
            "Use --xdp-mode auto, or a NIC whose driver supports XDP",
        ),
        _ => Finding::warning(
            &check,
            format!("not supported by the driver: {by_tc}"),
            "Use a NIC whose driver supports XDP, or accept the lower throughput",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_do_not_fit_into_memory_are_refused() {
        let free = available("MemTotal: 9 kB\nMemAvailable:    1048576 kB\n");
        assert_eq!(free, Some(1 << 30));
        for (mebibytes, result) in
            [(100, CheckResult::Ok), (600, CheckResult::Warning), (1025, CheckResult::Error)]
        {
            assert_eq!(fits(mebibytes << 20, free).result, result, "{mebibytes}");
        }
        assert_eq!(fits(1 << 40, available("")).result, CheckResult::Ok, "unknown");
    }

    #[test]
    fn a_driver_without_xdp_is_an_error_only_where_it_is_asked_for() {
        let device = DeviceName { index: 2, name: "eth0".to_owned() };
        let result = |reported, finished, mode| driver(&device, reported, finished, mode).result;
        assert_eq!(result(Some(None), true, XdpMode::Auto), CheckResult::Warning);
        assert_eq!(result(Some(None), true, XdpMode::Native), CheckResult::Error);
        assert_eq!(result(Some(None), false, XdpMode::Auto), CheckResult::Ok);
        assert_eq!(result(Some(None), true, XdpMode::Off), CheckResult::Ok);
        assert_eq!(result(None, true, XdpMode::Native), CheckResult::Ok);
    }
}
