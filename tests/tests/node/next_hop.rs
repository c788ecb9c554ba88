//! Established connections to a remote backend while its next hop changes.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Host, Process, SOON, wait_until};

fn web() -> Service {
    Service::new("web", &["10.96.0.10"])
        .load_balancer(&["203.0.113.10"])
        .tcp(80, 8080)
        .on("elsewhere", &["10.50.0.1"])
}

/// A backend at 10.50.0.1 behind two links. At first the route uses link 1.
struct TwoWires {
    network: OneNode,
    backend: Host,
    _server: Process,
    agent: Option<Agent>,
    connection: TcpStream,
}

impl TwoWires {
    fn new() -> Result<Self> {
        let network = OneNode::warm(0)?;
        let backend = network.topology.host("elsewhere")?;
        for wire in [1, 2] {
            network.topology.link(
                network
                    .node
                    .port(&format!("lan{wire}"))
                    .address(&format!("10.9.{wire}.1/24"))
                    .wire(),
                backend.port(&format!("eth{wire}")).address(&format!("10.9.{wire}.2/24")).wire(),
            )?;
        }
        backend.address("lo", "10.50.0.1/32")?;
        network.node.route("10.50.0.1", "10.9.1.2")?;
        let server = backend.http_server(&["10.50.0.1:8080"], "elsewhere")?;
        let devices = ["--device", "lan*"];
        let agent = network.agent_with(&manifests(&[web()]), &devices)?;
        let connection = network.client.tcp_connect("203.0.113.10:80")?;
        Ok(Self { network, backend, _server: server, agent: Some(agent), connection })
    }

    /// Sends a request over the open connection.
    fn ask(&mut self) -> Result<()> {
        self.connection.write_all(b"HEAD / HTTP/1.1\r\nHost: web\r\n\r\n")?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        while !answer.ends_with(b"\r\n\r\n") {
            let read = self.connection.read(&mut buffer).context("no response")?;
            ensure!(read > 0, "the connection was closed");
            answer.extend_from_slice(&buffer[..read]);
        }
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// The number of packets that the backend has received on a link.
    fn received(&self, wire: u8) -> Result<u64> {
        let path = format!("/sys/class/net/eth{wire}/statistics/rx_packets");
        let mount = ["sh", "-c", "mount -t sysfs none /sys && cat \"$0\"", &path];
        let words = ["unshare", "--mount"].into_iter().chain(mount);
        Ok(self.backend.run(words)?.trim().parse()?)
    }
}

#[test]
fn an_established_connection_follows_a_changed_route() -> Result<()> {
    let mut wires = TwoWires::new()?;
    wires.ask()?;
    wires.ask()?;
    // The SNAT address stays that of the first link for the whole connection.
    wires.backend.route("10.9.1.1/32", "10.9.2.1").context("replies through link 2")?;
    wires.network.node.ip("route replace 10.50.0.1 via 10.9.2.2")?;
    wait_until("requests use the second link", SOON, || {
        // A few other packets may arrive on it, but not that many at once.
        const QUESTIONS: u64 = 10;
        let Ok(before) = wires.received(2) else { return false };
        let answered = (0..QUESTIONS).all(|_| wires.ask().is_ok());
        answered && wires.received(2).is_ok_and(|now| now >= before + QUESTIONS)
    })?;
    // The first link is no longer needed.
    wires.network.node.ip("link set lan1 down")?;
    wires.ask()
}

/// The API server may be behind the route that has changed.
#[test]
fn a_restarted_agent_follows_routes_before_it_has_read_any_object() -> Result<()> {
    let mut wires = TwoWires::new()?;
    wires.ask()?;
    wires.ask()?;
    if let Some(agent) = wires.agent.take() {
        agent.kill();
    }
    let _waiting = wires.network.agent_that_waits()?;
    wires.backend.route("10.9.1.1/32", "10.9.2.1").context("replies through link 2")?;
    wires.network.node.ip("route replace 10.50.0.1 via 10.9.2.2")?;
    wires.network.node.ip("link set lan1 down")?;
    wires.ask()
}

#[test]
fn an_established_connection_follows_a_changed_neighbour_address() -> Result<()> {
    let mut wires = TwoWires::new()?;
    wires.ask()?;
    wires.ask()?;
    wires.backend.ip("link set eth1 address 02:00:00:00:00:77")?;
    // As gratuitous ARP would do.
    wires.network.node.ip("neighbour replace 10.9.1.2 lladdr 02:00:00:00:00:77 dev lan1")?;
    wires.ask()
}
