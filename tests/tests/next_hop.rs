//! Established connections to a backend elsewhere, while the way to it changes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::agent::Agent;
use tests::one_node::{DEVICE, OneNode};
use tests::topology::{Host, Process, SOON, wait_until};

const WEB: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.50.0.1], nodeName: elsewhere}]
";

/// A backend at 10.50.0.1, to which two wires lead; the first is the way at the start.
struct TwoWires {
    network: OneNode,
    backend: Host,
    _server: Process,
    _agent: Agent,
    connection: TcpStream,
}

impl TwoWires {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(0)?;
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
        let file = network.topology.directory().join("web.yaml");
        fs::write(&file, WEB)?;
        let devices = ["--device", "lan*"];
        let agent = Agent::start(&network.node, &network.pin_path(), &file, DEVICE, &devices)?;
        let connection = network.client.enter(|| Ok(TcpStream::connect("203.0.113.10:80")?))?;
        // Less than any program takes to give up, more than a lost packet takes to be sent anew.
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { network, backend, _server: server, _agent: agent, connection })
    }

    /// Asks over the connection, which stays open.
    fn ask(&mut self) -> Result<()> {
        self.connection.write_all(b"HEAD / HTTP/1.1\r\nHost: web\r\n\r\n")?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        while !answer.ends_with(b"\r\n\r\n") {
            let read = self.connection.read(&mut buffer).context("no answer")?;
            ensure!(read > 0, "the connection was closed");
            answer.extend_from_slice(&buffer[..read]);
        }
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// How many packets the backend has received by a wire.
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
    // The node appears to the backend by the address of the first wire as long as this lasts.
    wires.backend.route("10.9.1.1/32", "10.9.2.1").context("answers by the second wire")?;
    wires.network.node.ip("route replace 10.50.0.1 via 10.9.2.2")?;
    wait_until("the second wire is the way", SOON, || {
        // Some packets of other kinds may come by it, but not that many at once.
        const QUESTIONS: u64 = 10;
        let Ok(before) = wires.received(2) else { return false };
        let answered = (0..QUESTIONS).all(|_| wires.ask().is_ok());
        answered && wires.received(2).is_ok_and(|now| now >= before + QUESTIONS)
    })?;
    // Nothing needs the first one any more.
    wires.network.node.ip("link set lan1 down")?;
    wires.ask()
}

#[test]
fn an_established_connection_follows_a_neighbour_that_gets_another_address() -> Result<()> {
    let mut wires = TwoWires::new()?;
    wires.ask()?;
    wires.ask()?;
    wires.backend.ip("link set eth1 address 02:00:00:00:00:77")?;
    // What a host tells its neighbours when it takes an address over.
    wires.network.node.ip("neighbour replace 10.9.1.2 lladdr 02:00:00:00:00:77 dev lan1")?;
    wires.ask()
}
