//! Connections that a router moves to another node after their Service's backends have changed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use tests::programs::agent::{Agent, program};
use tests::worlds::topology::{Echo, Host, SOON, Topology, wait_until};

const KEY: &str = "5f4dcc3b5aa765d61d8327deb882cf99";
const FRONTEND: &str = "203.0.113.11:9000";
const OLD: &str = "10.244.3.10";
const NEW: &str = "10.244.4.10";
const CONNECTIONS: usize = 40;
const ENTRY_NODE: &str = "10.7.2.2";
const OLD_NODE: &str = "10.7.3.2";
const NEW_NODE: &str = "10.7.4.2";

/// client - router - entry: has no pod
///                 \ old - pod: the only backend at first
///                 \ new - pod: another backend later
struct Network {
    client: Host,
    router: Host,
    nodes: [Host; 3],
    /// Arguments of all agents.
    arguments: Vec<String>,
    agents: Vec<Agent>,
    _echos: [Echo; 2],
    topology: Topology,
}

impl Network {
    fn new(history: &str, xdp_mode: &str, first: &str) -> Result<Self> {
        let topology = Topology::new("slot-history")?;
        let client = topology.host("client")?;
        let router = topology.router("router")?;
        let nodes = ["entry", "old", "new"].map(|name| topology.router(name));
        let [entry, old, new] = nodes;
        let nodes = [entry?, old?, new?];
        for (host, number) in [&client].into_iter().chain(&nodes).zip(1..) {
            let device = if number == 1 { "eth0" } else { "ext0" };
            let near = router.port(&format!("port{number}"));
            let near = near.address(&format!("10.7.{number}.1/24")).wire();
            let far = host.port(device).address(&format!("10.7.{number}.2/24")).wire();
            topology.link(far, near.gro(true))?;
            host.default_routes(&[&format!("10.7.{number}.1")])?;
        }
        router.route("203.0.113.0/24", first)?;
        let [_, old, new] = &nodes;
        let pods = [old.pod("pod-old", &[OLD])?, new.pod("pod-new", &[NEW])?];
        let echos = [
            pods[0].tcp_echo(&format!("{OLD}:9000"), "old")?,
            pods[1].tcp_echo(&format!("{NEW}:9000"), "new")?,
        ];
        write(&topology, &[(OLD, "old")])?;
        let key_file = topology.directory().join("key");
        fs::write(&key_file, KEY)?;
        let key_file = key_file.to_str().context("a path in UTF-8")?;
        let arguments = ["--tunnel-key-file", key_file, "--slot-history", history];
        let arguments = [&arguments[..], &["--xdp-mode", xdp_mode]].concat();
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let agents = Vec::new();
        let mut network =
            Self { client, router, nodes, arguments, agents, _echos: echos, topology };
        for node in 0..network.nodes.len() {
            let agent = network.start_agent(node, network.nodes[node].name())?;
            network.agents.push(agent);
        }
        network.wait_for_probes()?;
        Ok(network)
    }

    fn start_agent(&self, node: usize, pins: &str) -> Result<Agent> {
        let node = &self.nodes[node];
        let arguments = self.arguments.iter().map(String::as_str);
        let arguments: Vec<&str> =
            ["--node-name", node.name()].into_iter().chain(arguments).collect();
        let pins = self.topology.warm_pins(pins);
        Agent::start(node, &pins, &self.topology.manifests(), "ext0", &arguments)
    }

    /// Nodes ask only those whose replies to probes say that they understand questions.
    fn wait_for_probes(&self) -> Result<()> {
        let [_, _, new] = &self.nodes;
        let knows_others = || {
            let metrics = new.curl("http://127.0.0.1:10249/metrics").unwrap_or_default();
            metrics.contains("millrace_tunnel_nodes{state=\"decapsulates\"} 2\n")
        };
        wait_until("the nodes have replied to probes", SOON, knows_others)
    }

    /// The node with the new backend loses all its state, and joins again.
    fn replace_new_node(&mut self) -> Result<()> {
        let agent = self.agents.pop().context("its agent runs")?;
        let log = agent.end()?;
        let pins = self.topology.warm_pins(self.nodes[2].name());
        let mut cleanup = self.nodes[2].command(program()?);
        let output = cleanup.arg("cleanup").arg("--pin-path").arg(pins).output()?;
        ensure!(output.status.success(), "{}\n{log}", String::from_utf8_lossy(&output.stderr));
        let mut agent = self.start_agent(2, "joined")?;
        agent.wait_for_output("earlier owners of slots learned")?;
        self.agents.push(agent);
        self.wait_for_probes()
    }

    /// Adds the other backend on all nodes.
    fn add_backend(&self) -> Result<()> {
        write(&self.topology, &[(OLD, "old"), (NEW, "new")])?;
        // By the Service: only what is in its pools is listed.
        let is_known = |agent: &Agent| {
            let rows = agent.get(&["backends", "web"]);
            rows.is_ok_and(|rows| rows.contains(OLD) && rows.contains(NEW))
        };
        let are_known = || self.agents.iter().all(is_known);
        wait_until("all nodes have both backends", SOON, are_known)
    }

    fn counters(&self) -> String {
        let of = |agent: &Agent| agent.get(&["counters"]).unwrap_or_default();
        self.agents.iter().map(of).collect::<Vec<_>>().join("\n")
    }
}

fn write(topology: &Topology, endpoints: &[(&str, &str)]) -> Result<()> {
    let mut text = String::new();
    for (name, number) in ["entry", "old", "new"].iter().zip(2..) {
        text += &format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
             status: {{addresses: [{{type: InternalIP, address: 10.7.{number}.2}}]}}\n---\n"
        );
    }
    text += "
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {millrace.io/forwarding: gue}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.11
  ports: [{name: echo, port: 9000}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.11}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: echo, port: 9000}]
endpoints:
";
    for (address, node) in endpoints {
        text += &format!("- {{addresses: [{address}], nodeName: {node}}}\n");
    }
    topology.replace_manifests(&text)
}

/// Sends a line; returns the name of the server that replied.
fn ask(stream: &mut TcpStream) -> Result<String> {
    stream.write_all(b"hello\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}

/// How many connections survive that the router moves from one node to another one, and how often an earlier owner
/// recognised one.
fn survivors(history: &str, xdp_mode: &str, nodes: [&str; 2]) -> Result<(usize, u64)> {
    survivors_after(history, xdp_mode, nodes, |_| Ok(()))
}

/// How many connections survive if something happens before the router moves them.
fn survivors_after(
    history: &str,
    xdp_mode: &str,
    [from, to]: [&str; 2],
    act: impl FnOnce(&mut Network) -> Result<()>,
) -> Result<(usize, u64)> {
    let mut network = Network::new(history, xdp_mode, from)?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = network.client.tcp_connect(FRONTEND)?;
        stream.set_read_timeout(Some(SOON))?;
        ensure!(ask(&mut stream)? == "old", "{}", network.counters());
        connections.push(stream);
    }
    network.add_backend()?;
    act(&mut network)?;
    network.router.ip(&format!("route replace 203.0.113.0/24 via {to}"))?;
    let mut alive = 0;
    for stream in &mut connections {
        // Twice: the second packet takes the way that the first has found.
        let served = [ask(stream).unwrap_or_default(), ask(stream).unwrap_or_default()];
        alive += usize::from(served == ["old", "old"]);
    }
    // New connections are spread over both.
    let mut seen = [false; 2];
    wait_until("both backends serve", SOON, || {
        let served = network.client.tcp_connect(FRONTEND).and_then(|mut stream| ask(&mut stream));
        seen[0] |= matches!(served.as_deref(), Ok("old"));
        seen[1] |= matches!(served.as_deref(), Ok("new"));
        seen == [true; 2]
    })?;
    Ok((alive, network.agents[1].counted("recognized")?))
}

#[test]
fn connections_survive_the_move_to_a_node_that_asks_earlier_owners() -> Result<()> {
    // The slot's owner receives them from the router, or through a tunnel from the node that does.
    for (xdp_mode, nodes) in [("native", [ENTRY_NODE, NEW_NODE]), ("off", [OLD_NODE, ENTRY_NODE])] {
        let (alive, recognized) = survivors("86400", xdp_mode, nodes)?;
        assert_eq!(alive, CONNECTIONS, "{xdp_mode}");
        assert!(recognized > 0);
    }
    Ok(())
}

#[test]
fn a_node_that_joins_after_the_change_learns_of_it() -> Result<()> {
    let nodes = [ENTRY_NODE, NEW_NODE];
    let (alive, recognized) = survivors_after("86400", "native", nodes, Network::replace_new_node)?;
    assert_eq!(alive, CONNECTIONS);
    assert!(recognized > 0);
    Ok(())
}

#[test]
fn without_history_those_of_changed_slots_are_reset() -> Result<()> {
    let (alive, recognized) = survivors("0", "native", [ENTRY_NODE, NEW_NODE])?;
    assert!((1..CONNECTIONS).contains(&alive), "{alive} of {CONNECTIONS}");
    assert_eq!(recognized, 0);
    Ok(())
}
