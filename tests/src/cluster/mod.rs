//! Two nodes of a cluster, wired as network plugins do it, all kinds at once, and a client outside.
//!
//! Each plugin has its own pods and its own path between the nodes, so what it needs from a node is the
//! same as where it is alone. The nodes also have what is usual on real ones: strict reverse path filtering,
//! a firewall that drops packets without a valid connection, and masquerading of what pods send out of the
//! cluster.

mod manifests;
mod names;
mod tun;
mod tunnel;
mod wiring;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::agent::{Agent, SMALL_MAPS};
use crate::topology::{Echo, Host, SOON, Topology};
use tun::Relay;

pub use names::{Ip, Plugin, Scope, Side, Transport, cluster_ip, node_port, pod_address, vip};

/// The client's addresses.
pub const CLIENT: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

pub struct Cluster {
    pub client: Host,
    nodes: [Host; 2],
    /// By plugin: the two on node A and the one on node B. The plugin without pods has none.
    pods: Vec<[Host; 3]>,
    _servers: Vec<Echo>,
    _relay: Option<Relay>,
    topology: Topology,
}

impl Cluster {
    pub fn new() -> Result<Self> {
        let topology = Topology::new("cluster")?;
        let (client, nodes) = wiring::hosts(&topology)?;
        let pods = Plugin::WITH_PODS
            .iter()
            .map(|&plugin| wiring::pods(&topology, plugin, &nodes))
            .collect::<Result<Vec<_>>>()?;
        let relay = wiring::connect(&topology, &nodes)?;
        let mut cluster =
            Self { client, nodes, pods, _servers: Vec::new(), _relay: relay, topology };
        cluster._servers = cluster.serve()?;
        Ok(cluster)
    }

    pub fn node(&self, side: Side) -> &Host {
        &self.nodes[side as usize]
    }

    /// One of a plugin's two pods on node A.
    pub fn pod(&self, plugin: Plugin, number: usize) -> Option<&Host> {
        let index = Plugin::WITH_PODS.iter().position(|&with_pods| with_pods == plugin)?;
        Some(&self.pods[index][number])
    }

    /// The first pod of each plugin has servers on each node.
    fn serve(&self) -> Result<Vec<Echo>> {
        let mut servers = Vec::new();
        for plugin in Plugin::ALL {
            for side in Side::BOTH {
                let host = match self.pod(plugin, if side == Side::A { 0 } else { 2 }) {
                    Some(pod) => pod,
                    None => self.node(side),
                };
                for ip in Ip::BOTH {
                    let address = pod_address(plugin, side, 0, ip);
                    let name = names::server(plugin, side);
                    servers.push(host.tcp_echo(&names::end(&address, manifests::TCP), &name)?);
                    servers.push(host.udp_echo(&names::end(&address, manifests::UDP), &name)?);
                }
            }
        }
        Ok(servers)
    }

    /// Starts an agent on a node, with the default choice of interfaces.
    pub fn agent(&self, side: Side, xdp_mode: &str) -> Result<Agent> {
        let file = self.topology.directory().join("manifests.yaml");
        fs::write(&file, manifests::all())?;
        let pins = self.topology.warm_pins(side.name());
        let own = ["--node-name", side.name(), "--xdp-mode", xdp_mode];
        let more = [&own[..], &SMALL_MAPS].concat();
        Agent::start(self.node(side), &pins, &file, "auto", &more)
    }
}

/// Which server has answered, and which address it saw.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub server: String,
    pub peer: SocketAddr,
}

/// Sends a message to a server, and waits for its reply.
pub fn ask(from: &Host, transport: Transport, to: &str) -> Result<Answer> {
    let to: SocketAddr = to.parse().with_context(|| to.to_owned())?;
    let line = from.enter(|| match transport {
        Transport::Tcp => ask_by_tcp(to),
        Transport::Udp => ask_by_udp(to),
    })?;
    Answer::parse(&line)
}

impl Answer {
    /// `SERVER PEER MESSAGE`.
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let server = words.next().context("an empty answer")?.to_owned();
        let peer = words.next().context("an answer without a peer")?.parse()?;
        Ok(Self { server, peer })
    }
}

fn ask_by_tcp(to: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"hello\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the connection was closed");
    Ok(line)
}

/// A datagram may be lost while a neighbour is resolved: it is sent again.
fn ask_by_udp(to: SocketAddr) -> Result<String> {
    const RESEND: Duration = Duration::from_secs(1);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(RESEND))?;
    let mut buffer = [0; 512];
    for _ in 0..SOON.as_secs() {
        socket.send(b"hello")?;
        if let Ok(length) = socket.recv(&mut buffer) {
            return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    }
    bail!("no answer")
}
