//! The commands that read the maps: while the agent runs, and after it was killed.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, Map, MapData};
use lb_common::layout::{Identity, SCHEMA, map};
use lb_kernel::Plain;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{CLIENT, DEVICE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

/// `shop/web` with two endpoints, and `default/dns` without endpoints.
const MANIFESTS: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {millrace.io/zone-weights: b=300}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.10], nodeName: node}
- {addresses: [10.244.1.11], nodeName: node, zone: b}
---
apiVersion: v1
kind: Service
metadata: {name: dns}
spec:
  clusterIP: 10.96.0.53
  ports: [{port: 53, protocol: UDP}]
";

/// A node with an agent and its data plane.
struct World {
    network: OneNode,
    agent: Agent,
}

impl World {
    fn new() -> Result<Self> {
        let network = OneNode::warm(2)?;
        let (agent, _) = network.agent_on(MANIFESTS)?;
        Ok(Self { network, agent })
    }
}

fn text(network: &OneNode, arguments: &[&str]) -> Result<String> {
    let output = network.millrace(arguments)?.output()?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {complaint}");
    Ok(String::from_utf8(output.stdout)?)
}

fn json(network: &OneNode, arguments: &[&str]) -> Result<Value> {
    let text = text(network, &[arguments, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// Opens a connection through the Service that stays open, and sends a request, so that its flow is
/// established.
fn connect(network: &OneNode) -> Result<TcpStream> {
    let mut connection = network.client.tcp_connect("203.0.113.10:80")?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    ensure!(connection.read(&mut [0; 1024])? > 0, "no response");
    Ok(connection)
}

/// Checks the output that depends only on the maps.
fn look(network: &OneNode) -> Result<()> {
    let services = json(network, &["services"])?;
    assert_eq!(services[0]["name"], "dns");
    let web = &services[1];
    assert_eq!((&web["namespace"], &web["name"]), (&"shop".into(), &"web".into()));
    let port = &web["ports"][0];
    assert_eq!(port["clusterPool"]["backends"][1]["address"], "10.244.1.11:8080");
    assert_eq!(port["clusterPool"]["backends"][1]["weight"], 300);
    assert!(port["traffic"]["newFlows"].as_u64() > Some(0), "{port}");
    let table = text(network, &["services", "-n", "shop", "--no-headers"])?;
    assert!(
        table.starts_with("shop   web   10.96.0.10,203.0.113.10   80:30080/TCP   2 "),
        "{table}"
    );
    assert_eq!(text(network, &["services", "-o", "name"])?, "default/dns\nshop/web\n");

    let frontends = json(network, &["frontends", "web"])?;
    let addresses: Vec<_> = (0..3).map(|n| frontends[n]["address"].clone()).collect();
    assert_eq!(addresses, ["*:30080", "10.96.0.10:80", "203.0.113.10:80"]);
    assert_eq!(frontends[3], Value::Null);

    let backends = json(network, &["backends", "shop/web"])?;
    assert_eq!(backends[0]["state"], "serving");
    assert_eq!(backends[0]["local"], true);
    let slots =
        backends[0]["serves"][0]["slots"].as_u64().zip(backends[1]["serves"][0]["slots"].as_u64());
    let of = backends[0]["serves"][0]["ofSlots"].as_u64();
    assert_eq!(slots.map(|(one, other)| one + other), of);

    let pools = json(network, &["maglev", "shop/web"])?;
    let shares = pools.as_array().into_iter().flatten();
    for pool in shares {
        assert_eq!(pool["asComputed"], true, "{pool}");
        let share = pool["backends"][1]["percent"].as_f64().context("a share")?;
        assert!((74.0..76.0).contains(&share), "{pool}");
    }

    let counters = json(network, &["counters"])?;
    assert!(
        counters.as_array().is_some_and(|all| all.iter().any(|one| one["reason"] == "no_backend"))
    );
    look_at_flows(network)
}

/// Checks the part of the status that does not depend on an agent, and the exit code.
fn status(network: &OneNode, code: i32) -> Result<Value> {
    let output = network.millrace(&["status", "-o", "json"])?.output()?;
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(code), "{text}");
    let status: Value = serde_json::from_str(&text)?;
    assert_eq!(status["healthy"], code == 0);
    assert_eq!(status["pins"]["missingMaps"], Value::Array(Vec::new()));
    let tc = ["tcx ingress", "tcx egress"];
    let devices = serde_json::json!([
        {"name": DEVICE, "hooks": ["native XDP", tc[0], tc[1]]},
        {"name": "pod-0", "hooks": tc},
        {"name": "pod-1", "hooks": tc},
    ]);
    assert_eq!(status["devices"], devices);
    let fill = |name: &str| {
        let maps = status["maps"].as_array().into_iter().flatten();
        maps.filter(|map| map["map"] == name).filter_map(|map| map["used"].as_u64()).sum::<u64>()
    };
    assert_eq!((fill("SERVICE_NAMES"), fill("BACKEND_TRAFFIC")), (2, 2), "{status}");
    assert!(fill("WEIGHTS") > 0, "{status}");
    assert!(fill("FLOWS4") > 0 && fill("POOL_SLOTS") > 0, "{status}");
    Ok(status)
}

fn look_at_flows(network: &OneNode) -> Result<()> {
    let flows = |more: &[&str]| json(network, &[&["flows"], more].concat());
    let established = flows(&["--state", "established", "--service", "shop/web"])?;
    let flow = &established[0];
    assert!(flow["client"].as_str().is_some_and(|c| c.starts_with(CLIENT)), "{established}");
    assert_eq!((&flow["service"], &flow["frontend"]), (&"web".into(), &"203.0.113.10:80".into()));
    let backend = flow["backend"].as_str().context("a flow has a backend")?;
    assert_eq!(flows(&["--backend", backend, "--state", "established"])?[0]["backend"], *backend);
    assert_eq!(flows(&["--client", "198.51.100.0/24"])?, Value::Array(Vec::new()));

    // Flows of closed connections expire, perhaps between two commands.
    let mut counts = Value::Null;
    wait_until("the list is as long as the counts say", SOON, || {
        counts = flows(&["--count"]).unwrap_or_default();
        let all = flows(&[]).ok().and_then(|all| all.as_array().map(Vec::len));
        let of_client = flows(&["--count", "--client", CLIENT]).unwrap_or_default();
        counts["total"].as_u64() == all.map(|all| all as u64)
            && counts["total"] == of_client["total"]
    })?;
    assert!(counts["byState"]["established"].as_u64() >= Some(1), "{counts}");
    assert_eq!(flows(&["--count", "--service", "default/dns"])?["total"], 0);
    Ok(())
}

#[test]
fn commands_print_the_same_after_the_agent_was_killed() -> Result<()> {
    let World { network, agent } = World::new()?;
    let _open = connect(&network)?;
    for _ in 0..20 {
        network.curl("http://203.0.113.10/")?;
    }
    wait_until("the connection is established", SOON, || {
        let count = json(&network, &["flows", "--state", "established", "--count"]);
        count.is_ok_and(|count| count["total"].as_u64() > Some(0))
    })?;
    look(&network).context("while the agent runs")?;
    let healthy = status(&network, 0)?;
    let report = &healthy["agent"]["report"];
    assert_eq!((&report["nodeName"], &report["services"]), (&"node".into(), &2.into()));
    assert_eq!(report["process"], healthy["agent"]["process"], "another agent reports");
    agent.kill();
    look(&network).context("without an agent")?;
    let sick = status(&network, 1)?;
    assert_eq!(sick["agent"]["running"], false);
    let message = sick["problems"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("no agent is running"), "{sick}");

    // An error names what does not exist.
    let nobody = network.millrace(&["services", "shop/nobody"])?.output()?;
    assert_eq!(nobody.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(complaint.contains("Service shop/nobody"), "{complaint}");
    network.cleanup()?;
    let nothing = network.millrace(&["services"])?.output()?;
    assert_eq!(nothing.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(complaint.contains("no data plane is pinned"), "{complaint}");
    Ok(())
}

/// Another version may have laid out the entries in another way.
#[test]
fn commands_refuse_maps_of_another_schema() -> Result<()> {
    let World { network, agent } = World::new()?;
    agent.kill();
    let data = MapData::from_pin(network.pin_path().join(map::IDENTITY))?;
    let mut pinned: Array<_, Plain<Identity>> = Array::try_from(Map::Array(data))?;
    let Plain(identity) = pinned.get(&0, 0)?;
    pinned.set(0, Plain(Identity { schema: SCHEMA + 1, ..identity }), 0)?;
    for command in [&["services"][..], &["flows"], &["status"], &["drops"], &["counters"]] {
        let refused = network.millrace(command)?.output()?;
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{command:?}: {complaint}");
        let message = format!("have schema {}, but this program reads schema {SCHEMA}", SCHEMA + 1);
        assert!(complaint.contains(&message), "{command:?}: {complaint}");
    }
    Ok(())
}

/// `--watch` prints only Services that have changed.
#[test]
fn a_watched_service_is_printed_again_when_it_changes() -> Result<()> {
    let World { network, agent: _agent } = World::new()?;
    let mut watching =
        network.node.spawn(&mut network.millrace(&["services", "web", "--watch"])?)?;
    watching.wait_for_output("shop", SOON)?;
    let file = network.topology.directory().join("manifests.yaml");
    let fewer = MANIFESTS.replace("- {addresses: [10.244.1.11], nodeName: node, zone: b}\n", "");
    assert_ne!(fewer, MANIFESTS);
    fs::write(&file, fewer)?;
    watching.wait_for_output("80:30080/TCP   1 ", SOON)?;
    let printed = watching.output();
    assert_eq!(printed.matches("NAMESPACE").count(), 1, "{printed}");
    assert!(!printed.contains("dns"), "{printed}");
    Ok(())
}

/// A terminal on a tmux server of its own, which ends when this is dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a shell command on the node.
    fn start(network: &OneNode, command: &str) -> Result<Self> {
        let terminal = Self { socket: format!("{}-tmux", network.node.namespace()) };
        let inside = format!("--net={}", network.node.namespace_path().display());
        let size = ["-x", "110", "-y", "30"];
        let shell = ["nsenter", &inside, "sh", "-c", command];
        terminal.tmux(&[&["-f", "/dev/null", "new-session", "-d"][..], &size, &shell].concat())?;
        Ok(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(arguments).output()?;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "tmux {arguments:?}: {complaint}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).unwrap_or_else(|error| format!("{error:#}"))
    }

    fn wait_for(&self, text: &str) -> Result<()> {
        wait_until(text, SOON, || self.screen().contains(text)).with_context(|| self.screen())
    }

    fn press(&self, key: &str) -> Result<()> {
        self.tmux(&["send-keys", key]).map(drop)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// A shell command that runs `millrace top`, then prints its exit code and the terminal's settings.
fn top(network: &OneNode) -> Result<String> {
    let (program, pins) = (program()?, network.pin_path());
    let top = format!("{} --pin-path {} top", program.display(), pins.display());
    Ok(format!("{top}; echo ended $?; stty -a; sleep 1000"))
}

#[test]
fn top_shows_traffic_and_restores_the_terminal() -> Result<()> {
    let World { network, agent: _agent } = World::new()?;
    let once = json(&network, &["top", "--once"])?;
    assert!(once["services"].as_array().is_some_and(|all| all.len() == 2), "{once}");
    assert_eq!(once["backends"][0]["name"], "10.244.1.10:8080/TCP");
    // If stdout is not a terminal, `top` prints plain text.
    let printed = text(&network, &["top", "--once"])?;
    assert!(printed.contains("shop/web") && printed.contains("REASON"), "{printed}");

    let terminal = Terminal::start(&network, &top(&network)?)?;
    terminal.wait_for("Services: 2, by packets")?;
    let shows_traffic = || {
        let _ = network.curl("http://203.0.113.10/");
        let screen = terminal.screen();
        let web = screen.lines().find(|line| line.contains("shop/web")).unwrap_or_default();
        let numbers: Vec<&str> = web.split_whitespace().collect();
        // The first words are the frame's border and the name.
        numbers.get(2).is_some_and(|new_flows| *new_flows != "0")
    };
    wait_until("the new connections are shown", SOON, shows_traffic)
        .with_context(|| terminal.screen())?;
    if let Some(file) = std::env::var_os("MILLRACE_TESTS_SCREEN") {
        fs::write(file, terminal.screen())?;
    }
    terminal.press("Tab")?;
    terminal.wait_for("10.244.1.10:8080/TCP")?;
    terminal.press("n")?;
    terminal.wait_for("Backends: 2, by name")?;
    // `top` redraws after a resize: the frame ends at the new border. Keys wait until then, because the terminal's
    // library can miss one that arrives together with the signal.
    terminal.tmux(&["resize-window", "-x", "60", "-y", "20"])?;
    terminal.wait_for(&format!("Backends: 2, by name {}┐", "─".repeat(36)))?;
    terminal.press("q")?;
    terminal.wait_for("ended 0")?;
    is_given_back(&terminal)
}

#[test]
fn top_restores_the_terminal_on_sigterm() -> Result<()> {
    let World { network, agent: _agent } = World::new()?;
    let file = network.topology.directory().join("pid");
    // The shell replaces itself with `top`, so the PID that it writes is that of `top`.
    let command = top(&network)?;
    let (top, rest) = command.split_once(';').context("a command that prints the exit code")?;
    let command = format!("sh -c 'echo $$ > {}; exec {top}'; {rest}", file.display());
    let terminal = Terminal::start(&network, &command)?;
    terminal.wait_for("Services: 2, by packets")?;
    let process: i32 = fs::read_to_string(&file)?.trim().parse()?;
    kill(Pid::from_raw(process), Signal::SIGTERM)?;
    terminal.wait_for("ended 0")?;
    is_given_back(&terminal)
}

/// Checks that the terminal's modes are restored, and that the earlier screen is shown.
fn is_given_back(terminal: &Terminal) -> Result<()> {
    // The last word of stty.
    terminal.wait_for("extproc")?;
    let screen = terminal.screen();
    let settings: Vec<&str> = screen.split_whitespace().collect();
    for setting in ["icanon", "echo", "isig", "opost"] {
        assert!(settings.contains(&setting), "{setting} is off:\n{screen}");
    }
    assert!(!screen.contains("Services: 2") && !screen.contains("Backends: 2"), "{screen}");
    Ok(())
}
