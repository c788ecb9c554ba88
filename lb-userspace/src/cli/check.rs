//! `millrace check`: will this machine do?

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::agent::runtime;
use super::output;
use crate::config::{Configuration, Effective, Problem, Problems};
use crate::kernel::{
    Finding, Outcome, Sizes, agent_on, kube_proxy, machine, memory, on_device, snat_ports,
};
use crate::network::{self, DeviceName, Network, Role, XdpFeatures};
use crate::settings::XdpMode;

#[derive(Debug, Args)]
pub struct Options {
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
}

pub fn check(options: &Options, effective: &Effective) -> Result<()> {
    let configuration = &effective.configuration;
    let pin_path = &configuration.common.pin_path;
    let mut findings = machine();
    findings.push(Finding::ok("configuration", "is right"));
    findings.push(room(configuration)?);
    findings.push(agent(pin_path)?);
    findings.extend(devices(configuration)?);
    findings.push(snat_ports(configuration.agent.snat_ports));
    findings.extend(kube_proxy());
    tell(options, &findings)
}

/// The same where the configuration is wrong: all that can be said without one.
pub fn check_without(options: &Options, problems: &Problems) -> Result<()> {
    const CURE: &str =
        "Mend it where it was given; `millrace config --check` looks at nothing else";
    let wrong = |problem: &Problem| Finding::error("configuration", problem.to_string(), CURE);
    let mut findings = machine();
    findings.extend(problems.0.iter().map(wrong));
    findings.extend(kube_proxy());
    tell(options, &findings)
}

fn tell(options: &Options, findings: &[Finding]) -> Result<()> {
    output::write(&match options.output {
        Format::Json => serde_json::to_string_pretty(findings)? + "\n",
        Format::Table => table(findings),
    })?;
    match findings.iter().filter(|finding| finding.result == Outcome::Error).count() {
        0 => Ok(()),
        errors => {
            bail!("this machine will not do as it is: {errors} of {} checks failed", findings.len())
        }
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let line = |finding: &Finding| {
        let result = match finding.result {
            Outcome::Ok => "ok",
            Outcome::Warning => "warning",
            Outcome::Error => "ERROR",
        };
        let Finding { check, message, cure, .. } = finding;
        let cure = if cure.is_empty() { String::new() } else { format!("{:11}-> {cure}\n", "") };
        format!("{result:8}   {check:width$}   {message}\n{cure}")
    };
    findings.iter().map(line).collect()
}

/// Whether the maps fit into the memory that is free.
fn room(configuration: &Configuration) -> Result<Finding> {
    let agent = &configuration.agent;
    let sizes = Sizes::for_flows(agent.max_flows)
        .with_services(agent.max_service_ports, agent.max_endpoints);
    let Some(bytes) = memory(sizes)? else {
        return Ok(Finding::error(
            "programs",
            "this binary was built without the BPF programs",
            "Build them with `cargo xtask build-ebpf`, then build it again",
        ));
    };
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(fits(bytes, available(&text)))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

fn fits(bytes: u64, available: Option<u64>) -> Finding {
    const CURE: &str = "Make room for less: --max-flows, --max-endpoints, --max-service-ports";
    let mebibytes = bytes >> 20;
    match available {
        Some(free) if bytes > free => {
            let message = format!("the maps take {mebibytes} MiB, and {} MiB are free", free >> 20);
            Finding::error("memory", message, CURE)
        }
        Some(free) if bytes > free / 2 => {
            let message = format!("the maps take {mebibytes} of {} MiB that are free", free >> 20);
            Finding::warning("memory", message, CURE)
        }
        _ => Finding::ok("memory", format!("the maps take {mebibytes} MiB")),
    }
}

fn agent(pin_path: &Path) -> Result<Finding> {
    let path = pin_path.display();
    Ok(match agent_on(pin_path)? {
        None => Finding::ok("agent", format!("none is running on {path}")),
        Some(process) => {
            let process = process.map_or(String::new(), |process| format!(" (process {process})"));
            Finding::warning(
                "agent",
                format!("one{process} is running on {path}"),
                "Another one would wait until it ends; or give it a --pin-path of its own",
            )
        }
    })
}

/// Whether there is what is to be served, and whether it can be.
fn devices(configuration: &Configuration) -> Result<Vec<Finding>> {
    let agent = &configuration.agent;
    let settings = network::Settings {
        external: agent.device.clone(),
        workload: agent.workload_device.clone(),
        node_ports: agent.nodeport_addresses.clone(),
    };
    let (opened, features) = runtime()?
        .block_on(async { (Network::open(settings).await, network::xdp_features().await) });
    let network = match opened {
        Ok(network) => network,
        // As the agent says it.
        Err(error) => {
            let cure = "`ip link` lists them; name those by which clients come with --device";
            return Ok(vec![Finding::error("devices", format!("{error:#}"), cure)]);
        }
    };
    let attachments = network.attachments();
    let names = |role| {
        let of = attachments.served.iter().filter(|(_, served)| served.role == role);
        of.map(|(device, _)| device.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut findings = vec![Finding::ok("devices", format!("clients: {}", names(Role::External)))];
    if !agent.workload_device.is_empty() {
        findings.push(match names(Role::Workload) {
            none if none.is_empty() => Finding::warning(
                "pods' devices",
                "there are none now",
                "If there are pods on this node, see --workload-device",
            ),
            names => Finding::ok("pods' devices", names),
        });
    }
    findings.extend(attachments.refused.iter().map(|(device, refusal)| {
        let check = format!("device {}", device.name);
        Finding::error(&check, format!("can't be served: {refusal}"), "See --device")
    }));
    let features = features.ok().flatten();
    let pin_path = &configuration.common.pin_path;
    for (device, served) in &attachments.served {
        for wire in &served.xdp {
            let told = features.as_ref().map(|features| features.get(&wire.index).copied());
            let finished = !attachments.unfinished.contains(wire);
            findings.push(driver(wire, told, finished, agent.xdp_mode));
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

/// What XDP can do on a device. `told`: nothing by a kernel that does not tell; within that nothing
/// by a driver that has none.
fn driver(
    device: &DeviceName,
    told: Option<Option<XdpFeatures>>,
    finished: bool,
    mode: XdpMode,
) -> Finding {
    let check = format!("XDP on {}", device.name);
    let by_tc = "tc serves it, at a few times the cost of a packet";
    match (mode, told) {
        (XdpMode::Off, _) => Finding::ok(&check, "is not to be used"),
        (XdpMode::Auto, _) if !mode.is_for(finished) => {
            Finding::ok(&check, "is left out, as frames may come from this very machine: tc serves")
        }
        (XdpMode::Generic, _) => Finding::ok(&check, "runs in the stack, as asked for"),
        (_, None) => Finding::ok(&check, "is tried: this kernel does not tell (Linux 6.3)"),
        (_, Some(Some(features))) if features.runs_programs() => {
            let sends = if features.sends() { "" } else { "; what leaves by it goes through tc" };
            Finding::ok(&check, format!("its driver runs programs{sends}"))
        }
        (XdpMode::Native, _) => Finding::error(
            &check,
            "its driver has none, and --xdp-mode native asks for it",
            "Use --xdp-mode auto, or a card whose driver has XDP",
        ),
        _ => Finding::warning(
            &check,
            format!("its driver has none: {by_tc}"),
            "Use another card, or leave it so",
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
            [(100, Outcome::Ok), (600, Outcome::Warning), (1025, Outcome::Error)]
        {
            assert_eq!(fits(mebibytes << 20, free).result, result, "{mebibytes}");
        }
        assert_eq!(fits(1 << 40, available("")).result, Outcome::Ok, "nobody knows");
    }

    #[test]
    fn a_driver_without_xdp_is_an_error_only_where_it_is_asked_for() {
        let device = DeviceName { index: 2, name: "eth0".to_owned() };
        let result = |told, finished, mode| driver(&device, told, finished, mode).result;
        assert_eq!(result(Some(None), true, XdpMode::Auto), Outcome::Warning);
        assert_eq!(result(Some(None), true, XdpMode::Native), Outcome::Error);
        assert_eq!(result(Some(None), false, XdpMode::Auto), Outcome::Ok);
        assert_eq!(result(Some(None), true, XdpMode::Off), Outcome::Ok);
        assert_eq!(result(None, true, XdpMode::Native), Outcome::Ok);
    }
}
