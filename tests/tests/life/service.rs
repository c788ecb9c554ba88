//! The agent as a systemd service: notifications to the service manager, and log levels.

use std::fs;
use std::os::unix::net::UnixDatagram;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode, REFUSED};
use tests::worlds::topology::SOON;

/// Waits for a notification to the service manager, and returns it.
fn hear(socket: &UnixDatagram, wanted: &str) -> Result<String> {
    let mut heard = String::new();
    loop {
        let mut buffer = [0; 1000];
        let length = socket.recv(&mut buffer).with_context(|| format!("{wanted}: {heard}"))?;
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if text.contains(wanted) {
            return Ok(text);
        }
        heard += &text;
    }
}

#[test]
fn systemd_is_notified_and_the_log_level_changes_at_run_time() -> Result<()> {
    let network = OneNode::warm(0)?;
    let directory = network.topology.directory();
    let manifests = directory.join("empty.yaml");
    fs::write(&manifests, "# nothing\n")?;
    let configuration = directory.join("config.yaml");
    fs::write(&configuration, "log: warn\nlog-format: json\nxdp-mode: native\nnode-name: node\n")?;
    let manager = UnixDatagram::bind(directory.join("notify"))?;
    manager.set_read_timeout(Some(SOON))?;

    let mut command = network.node.command(program()?);
    command
        .args(["agent", "--device", DEVICE, "--config"])
        .arg(&configuration)
        .arg("--manifests")
        .arg(&manifests)
        .arg("--pin-path")
        .arg(network.pin_path())
        .arg("--cgroup")
        .arg(network.node.cgroup())
        .env("NOTIFY_SOCKET", directory.join("notify"))
        .env("WATCHDOG_USEC", "200000");
    let mut agent = network.node.spawn(&mut command)?;
    let ready = hear(&manager, "READY=1")?;
    assert!(ready.contains("STATUS=0 service ports of 0 Services"), "{ready}");
    hear(&manager, "WATCHDOG=1")?;
    assert!(!agent.output().contains("\"ready\""), "a message of level info: {}", agent.output());

    fs::write(&configuration, "log: info\nlog-format: json\nxdp-mode: native\nnode-name: node\n")?;
    agent.signal(Signal::SIGHUP)?;
    assert!(hear(&manager, "RELOADING=1")?.contains("MONOTONIC_USEC="));
    hear(&manager, "READY=1")?;
    agent.wait_for_output("\"log level reloaded\",\"log_level\":\"info\"", SOON)?;

    // An invalid configuration changes nothing.
    fs::write(&configuration, "log: a=b=c\n")?;
    agent.signal(Signal::SIGHUP)?;
    hear(&manager, "READY=1")?;
    agent.wait_for_output("log level not reloaded", SOON)?;
    hear(&manager, "WATCHDOG=1")?;

    agent.signal(Signal::SIGTERM)?;
    hear(&manager, "STOPPING=1")?;
    assert!(agent.wait(SOON)?.success());
    let log = agent.output();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).with_context(|| log.clone())?;
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
        assert!(line["timestamp"].is_string(), "{line}");
    }
    assert!(log.contains("maps and programs stay attached"), "{log}");
    Ok(())
}

/// What the programs log of a packet that they reply to.
const REPLY: &str = "a reply to a packet from device";

/// The log of an agent while a connection is refused.
fn error_of_a_refused_connection(more: &[&str]) -> Result<String> {
    let network = OneNode::warm(0)?;
    let manifests = network.topology.directory().join("manifests.yaml");
    fs::write(&manifests, REFUSED)?;
    let pins = network.pin_path();
    let mut agent = Agent::start(&network.node, &pins, &manifests, DEVICE, more)?;
    network.client.tcp_connect("203.0.113.10:82").expect_err("it has no backend");
    if !more.contains(&"--bpf-log-level") {
        // The connection is over, so the complete log contains any message about it.
        return agent.end();
    }
    agent.wait_for_output(REPLY)?;
    Ok(agent.log())
}

#[test]
fn programs_log_packets_only_if_bpf_log_level_is_set() -> Result<()> {
    // Independent of the agent's own log level, which is less verbose by default.
    let log = error_of_a_refused_connection(&["--bpf-log-level", "debug"])?;
    let line = log.lines().find(|line| line.contains(REPLY)).context("no such line")?;
    assert!(line.contains("DEBUG"), "{line}");

    let log = error_of_a_refused_connection(&[])?;
    assert!(!log.contains(REPLY), "{log}");
    let log = error_of_a_refused_connection(&["--log", "debug"])?;
    assert!(!log.contains(REPLY), "{log}");
    Ok(())
}
