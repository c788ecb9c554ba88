//! The agent as the DaemonSet in `deploy/` starts it. With `MILLRACE_IMAGE`, the agent of that
//! image is tested (`cargo xtask image --test`).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use caps::Capability;
use serde_json::Value;
use tests::worlds::container::{Container, Specification};
use tests::worlds::one_node::{OneNode, WEB};
use tests::worlds::topology::{SOON, wait_until};

const SETTINGS: &str = "\
manifests: [/etc/millrace/web.yaml]
devices: [ext0]
xdp-mode: native
";

fn container(network: &OneNode) -> Result<Container> {
    let container = Container::new(&network.topology, SETTINGS)?;
    fs::write(container.config().join("web.yaml"), WEB)?;
    Ok(container)
}

/// A number from `/proc/PID/status`.
fn status(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|line| line.strip_prefix(":")).context(field.to_owned())?.trim();
    let radix = if field.starts_with("Cap") { 16 } else { 10 };
    u64::from_str_radix(value, radix).with_context(|| value.to_owned())
}

/// The permitted and the effective set of each thread that has not ended meanwhile.
fn capabilities_of_threads(pid: u32) -> Result<BTreeMap<u32, [u64; 2]>> {
    let mut found = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task: u32 = task?.file_name().to_string_lossy().parse()?;
        if let (Ok(permitted), Ok(effective)) = (status(task, "CapPrm"), status(task, "CapEff")) {
            found.insert(task, [permitted, effective]);
        }
    }
    Ok(found)
}

fn bits(capabilities: &[Capability]) -> u64 {
    capabilities.iter().map(|capability| 1 << (*capability as u64)).sum()
}

#[test]
fn a_container_with_the_privileges_of_the_daemon_set_forwards() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let container = container(&network)?;
    let specification = Specification::read()?;
    let args: Vec<&str> = specification.args.iter().map(String::as_str).collect();
    check(&network, &container, &specification)?;
    let mut agent = container.start(&network.node, &specification.capabilities, &args)?;
    agent.wait_for_output("ready service_ports=", SOON)?;
    ensure!(network.curl("http://203.0.113.10/")?.contains("pod-0"), "no response from pod-0");
    check(&network, &container, &specification)?;
    // A process of the node itself, through programs attached to the mounted cgroup hierarchy.
    network.node.curl("http://10.96.0.10/")?;

    let pid = agent.pid();
    let left = bits(&[Capability::CAP_BPF, Capability::CAP_NET_ADMIN]);
    // A thread that was needed for the start may still be ending.
    let mut capabilities = BTreeMap::new();
    wait_until("all threads have the same capabilities", SOON, || {
        capabilities = capabilities_of_threads(pid).unwrap_or_default();
        !capabilities.is_empty() && capabilities.values().all(|sets| *sets == [left; 2])
    })
    .with_context(|| format!("{capabilities:x?}"))?;
    ensure!(status(pid, "CapInh")? == 0 && status(pid, "NoNewPrivs")? == 1, "can regain some");

    // The next agent adopts the maps.
    let ended = agent.terminate(SOON)?;
    ensure!(ended.success(), "the agent exited with {ended}");
    ensure!(network.curl("http://203.0.113.10/")?.contains("pod-0"), "without an agent");
    let mut agent = container.start(&network.node, &specification.capabilities, &args)?;
    agent.wait_for_output("adopting", SOON)?;
    agent.wait_for_output("ready service_ports=", SOON)?;
    ensure!(network.curl("http://203.0.113.10/")?.contains("pod-0"), "with the next agent");
    Ok(())
}

/// `millrace check` in the container finds no problem.
fn check(network: &OneNode, container: &Container, specification: &Specification) -> Result<()> {
    let args = ["check", "--config=/etc/millrace/config.yaml", "-o", "json"];
    let output = container.command(&network.node, &specification.capabilities, &args).output()?;
    let log = [output.stdout, output.stderr].map(|log| String::from_utf8_lossy(&log).into_owned());
    ensure!(output.status.success(), "{log:?}");
    let findings: Vec<Value> = serde_json::from_str(&log[0])?;
    for checked in ["kernel", "btf", "bpffs", "cgroup", "uplinks", "programs on ext0"] {
        let found = findings.iter().find(|finding| finding["check"] == checked);
        let result = found.map(|finding| &finding["result"]);
        ensure!(result.is_some_and(|result| result == "ok"), "{checked}: {findings:?}");
    }
    Ok(())
}

#[test]
fn every_capability_of_the_daemon_set_is_needed() -> Result<()> {
    let network = OneNode::with_pods(0)?;
    let container = container(&network)?;
    let specification = Specification::read()?;
    let args: Vec<&str> = specification.args.iter().map(String::as_str).collect();
    for missing in &specification.capabilities {
        let others: Vec<Capability> =
            specification.capabilities.iter().copied().filter(|each| each != missing).collect();
        let mut agent = container.start(&network.node, &others, &args)?;
        let ended = agent.wait(SOON)?;
        ensure!(!ended.success(), "without {missing} it exited with 0:\n{}", agent.output());
        // The failure has the right reason: the agent checks its capabilities first.
        let (log, name) = (agent.output(), missing.to_string());
        let named = format!("missing: {}.", name.trim_start_matches("CAP_"));
        ensure!(log.contains(&named), "without {missing}, stderr:\n{log}");
    }
    Ok(())
}

/// On each node `deploy/kustomize/cleanup` runs these two containers, with the agent's privileges.
#[test]
fn the_cleanup_of_the_manifests_removes_everything() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let container = container(&network)?;
    let Specification { args, capabilities } = Specification::read()?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut agent = container.start(&network.node, &capabilities, &args)?;
    agent.wait_for_output("ready service_ports=", SOON)?;
    let clean = || container.command(&network.node, &capabilities, &["cleanup"]).output();
    let refused = clean()?;
    ensure!(!refused.status.success(), "it cleaned up under a running agent");
    ensure!(network.curl("http://203.0.113.10/")?.contains("pod-0"), "no response from pod-0");

    agent.terminate(SOON)?;
    let cleaned = clean()?;
    let output = String::from_utf8_lossy(&cleaned.stdout);
    ensure!(cleaned.status.success() && output.contains("removed "), "{cleaned:?}");
    ensure!(network.curl("http://203.0.113.10/").is_err(), "programs still translate");
    let mut stays = container.start(&network.node, &capabilities, &["cleanup", "--wait"])?;
    stays.wait_for_output("nothing to clean up", SOON)?;
    let ended = stays.terminate(SOON)?;
    ensure!(ended.success(), "the container exited with {ended}");
    Ok(())
}

#[test]
fn the_program_needs_no_other_files() -> Result<()> {
    let network = OneNode::with_pods(0)?;
    let container = container(&network)?;
    let run = |args: &[&str]| -> Result<String> {
        let output = container.command(&network.node, &[], args).output()?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    };
    let version = run(&["--version"])?;
    ensure!(version == format!("millrace {}\n", env!("CARGO_PKG_VERSION")), "{version}");
    run(&["config", "--check", "--config=/etc/millrace/config.yaml"])?;
    Ok(())
}
