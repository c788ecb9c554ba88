//! The unit `deploy/millrace.service` under systemd, with everything that it forbids the agent.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::worlds::one_node::{OneNode, WEB};
use tests::worlds::service_manager::ServiceManager;
use tests::worlds::topology::{SOON, wait_until};

const UNIT: &str = include_str!("../../../deploy/millrace.service");
const PAGE: &str = include_str!("../../../docs/two-machines.md");

/// Where `systemctl edit` writes to.
const OVERRIDE: &str = "etc/systemd/system/millrace.service.d/override.conf";
/// The unit's time is a minute. The agent that systemd aborts leaves no core.
const SHORT_WATCHDOG: &str = "[Service]\nWatchdogSec=5\nLimitCORE=0\n";

/// `log` is the level that a reload changes.
fn settings(log: &str) -> String {
    format!("log: {log}\nmanifests: [/etc/millrace/web.yaml]\ndevices: [ext0]\nnode-name: node\n")
}

fn boot(network: &OneNode) -> Result<ServiceManager> {
    let files = [
        ("etc/systemd/system/millrace.service", UNIT),
        ("etc/millrace/config.yaml", &settings("info")),
        ("etc/millrace/web.yaml", WEB),
    ];
    ServiceManager::boot(&network.node, network.topology.directory(), &files)
}

#[test]
fn systemd_starts_reloads_restarts_and_stops_the_agent() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let manager = boot(&network)?;
    let serves = || -> Result<()> {
        ensure!(network.curl("http://203.0.113.10/")?.contains("pod-0"), "no response from pod-0");
        Ok(())
    };
    // systemd ignores what it does not know, and complains on stderr.
    let verify = "systemd-analyze verify --man=no millrace.service 2>&1 || true";
    let complaints = manager.run(&["sh", "-c", verify])?;
    ensure!(!complaints.contains("millrace.service"), "{complaints}");

    // It returns when the agent is ready.
    manager.systemctl(&["enable", "--now"])?;
    let status = manager.property("StatusText")?;
    ensure!(status.contains("1 service ports of 1 Services"), "{status}");
    serves()?;
    let shown = manager.run(&["/usr/local/bin/millrace", "status"])?;
    ensure!(shown.starts_with("Health     healthy"), "{shown}");

    manager.write("etc/millrace/config.yaml", &settings("debug"))?;
    manager.systemctl(&["reload"])?;
    manager.wait_for_journal("log level reloaded")?;

    let restarted_to_be_ready = |before: &str| -> Result<()> {
        wait_until("systemd has restarted the agent", SOON, || {
            let is = |name: &str, value: &str| manager.property(name).is_ok_and(|is| is == value);
            is("ActiveState", "active") && !is("MainPID", before)
        })?;
        serves()
    };
    let first = manager.property("MainPID")?;
    manager.systemctl(&["restart"])?;
    restarted_to_be_ready(&first)?;

    // It crashes.
    let before = manager.property("MainPID")?;
    manager.signal_service(Signal::SIGKILL)?;
    restarted_to_be_ready(&before)?;

    // It hangs. The short time begins only now: a busy machine can exceed it, too.
    manager.write(OVERRIDE, SHORT_WATCHDOG)?;
    manager.run(&["systemctl", "daemon-reload"])?;
    manager.systemctl(&["restart"])?;
    let before = manager.property("MainPID")?;
    manager.signal_service(Signal::SIGSTOP)?;
    manager.wait_for_journal("Watchdog timeout")?;
    serves()?;
    restarted_to_be_ready(&before)?;

    manager.systemctl(&["stop"])?;
    let [state, result] = ["ActiveState", "Result"].map(|name| manager.property(name));
    ensure!(
        (state?.as_str(), result?.as_str()) == ("inactive", "success"),
        "{}",
        manager.journal()?
    );
    serves()
}

/// With the file that docs/two-machines.md gives to `systemctl edit`.
#[test]
fn the_unit_starts_standalone_as_documented() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let manager = boot(&network)?;
    let (_, rest) = PAGE.split_once("\n```ini\n").context("the page has a file for systemd")?;
    let (drop_in, _) = rest.split_once("```").context("the file ends")?;
    manager.write(OVERRIDE, drop_in)?;
    manager.write(
        "etc/millrace/config.yaml",
        &settings("info").replace("manifests:", "# manifests:"),
    )?;
    manager.run(&["systemctl", "daemon-reload"])?;
    manager.systemctl(&["start"])?;
    let status = manager.property("StatusText")?;
    ensure!(status.contains("0 service ports of 0 Services"), "{status}");
    // It could store its objects and keys.
    let stored = manager.run(&["ls", "/var/lib/millrace"])?;
    for file in ["kubeconfig", "objects.redb", "pki"] {
        ensure!(stored.lines().any(|line| line == file), "{stored}");
    }
    // After a restart with the stored objects.
    manager.systemctl(&["restart"])?;
    ensure!(manager.property("ActiveState")? == "active", "{}", manager.journal()?);
    Ok(())
}
