//! The load balancers that are compared. Each runs alone on the node of its own world. Its counters
//! show which connections it has balanced.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ::tests::programs::agent::Agent;
use ::tests::worlds::one_node::{DEVICE, NODE, OneNode};
use ::tests::worlds::topology::Process;
use anyhow::{Context, Result, bail, ensure};
use lb_kernel::Tables;

use super::services::{ADDRESS, MeasuredPort, ServicePort, service_manifests};
use super::{iptables, nftables};

/// Loading rules for many Services takes a while.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerKind {
    /// The client connects to the backends directly; the node only routes.
    None,
    Xdp,
    Tc,
    Nftables,
    Iptables,
    Haproxy,
}

impl BalancerKind {
    pub const ALL: [Self; 6] =
        [Self::None, Self::Xdp, Self::Tc, Self::Nftables, Self::Iptables, Self::Haproxy];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no balancer",
            Self::Xdp => "Millrace, XDP",
            Self::Tc => "Millrace, tc",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Haproxy => "HAProxy, TCP mode",
        }
    }

    /// The name for `--only`.
    pub fn key(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Xdp => "millrace-xdp",
            Self::Tc => "millrace-tc",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Haproxy => "haproxy",
        }
    }

    /// The program that must be installed.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Xdp | Self::Tc => None,
            Self::Nftables => Some("nft"),
            Self::Iptables => Some("iptables-nft-restore"),
            Self::Haproxy => Some("haproxy"),
        }
    }

    /// Whether it is measured with each number of Services; otherwise once.
    pub(crate) fn has_services(self) -> bool {
        !matches!(self, Self::None | Self::Haproxy)
    }

    pub(crate) fn carries_datagrams(self) -> bool {
        self != Self::Haproxy
    }
}

/// A running load balancer.
pub enum Balancer {
    None,
    Millrace {
        tables: Box<Tables>,
        /// Service port indexes by `MeasuredPort`.
        indexes: [u32; 3],
        xdp: bool,
        _agent: Agent,
    },
    Nftables {
        /// Counts before the counters were last reset, by `MeasuredPort`.
        counted: [Cell<u64>; 3],
    },
    Iptables {
        chains: [String; 3],
    },
    Haproxy {
        socket: PathBuf,
        _process: Process,
    },
}

impl Balancer {
    pub fn start(kind: BalancerKind, network: &OneNode, ports: &[ServicePort]) -> Result<Self> {
        match kind {
            BalancerKind::None => Ok(Self::None),
            BalancerKind::Xdp | BalancerKind::Tc => {
                millrace(kind == BalancerKind::Xdp, network, ports)
            }
            BalancerKind::Nftables => {
                let file = network.topology.directory().join("rules.nft");
                std::fs::write(&file, nftables::nftables_rules(ports, NODE))?;
                network
                    .node
                    .run_within(PATIENCE, ["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
                Ok(Self::Nftables { counted: Default::default() })
            }
            BalancerKind::Iptables => {
                let file = network.topology.directory().join("rules.iptables");
                std::fs::write(&file, iptables::iptables_rules(ports))?;
                let words = ["iptables-nft-restore".as_ref(), file.as_os_str()];
                network.node.run_within(PATIENCE, words)?;
                let chain = |measured| {
                    iptables::chain_of(measured, ports).context("every measured port has a chain")
                };
                let [web, stream, datagram] = MeasuredPort::ALL;
                Ok(Self::Iptables { chains: [chain(web)?, chain(stream)?, chain(datagram)?] })
            }
            BalancerKind::Haproxy => haproxy(network),
        }
    }

    /// The addresses to which the client connects for a port.
    pub fn addresses(&self, measured: MeasuredPort) -> Vec<SocketAddr> {
        match self {
            Self::None => measured.backends().into_iter().map(Into::into).collect(),
            _ => vec![(ADDRESS, measured.port()).into()],
        }
    }

    /// The number of connections or flows to a port that it has balanced so far.
    pub fn balanced(&self, network: &OneNode, measured: MeasuredPort) -> Result<u64> {
        match self {
            Self::None => Ok(0),
            Self::Millrace { tables, indexes, .. } => {
                Ok(tables.service_traffic(indexes[measured as usize])?.new_flows)
            }
            Self::Nftables { counted } => {
                // To list a counter, nft reads all rules, which takes seconds. Resetting it is fast and prints
                // the same.
                let words = ["nft", "reset", "counter", "ip", "kube-proxy", measured.name()];
                let listed = network.node.run(words)?;
                let more = nftables::parse_counter(&listed)
                    .with_context(|| format!("nft printed {listed}"))?;
                let counted = &counted[measured as usize];
                counted.set(counted.get() + more);
                Ok(counted.get())
            }
            Self::Iptables { chains } => {
                let words = ["nft", "list", "chain", "ip", "nat", &chains[measured as usize]];
                let listed = network.node.run_within(PATIENCE, words)?;
                iptables::parse_chain_counter(&listed)
                    .with_context(|| format!("nft lists {listed}"))
            }
            Self::Haproxy { socket, .. } => total_sessions(socket, measured.name()),
        }
    }

    /// The number of packets that its XDP program on the client's interface has redirected; `None`
    /// without such a program.
    pub(crate) fn sent_on_by_xdp(&self, network: &OneNode) -> Result<Option<u64>> {
        match self {
            Self::Millrace { xdp: true, .. } => network.node.redirected_by_xdp(DEVICE).map(Some),
            _ => Ok(None),
        }
    }
}

fn millrace(xdp: bool, network: &OneNode, ports: &[ServicePort]) -> Result<Balancer> {
    let file = network.topology.directory().join("manifests.yaml");
    std::fs::write(&file, service_manifests(ports))?;
    let pins = network.pin_path();
    let mode = if xdp { "native" } else { "off" };
    let more = ["--device", "in0", "--xdp-mode", mode];
    let agent = Agent::start(&network.node, &pins, &file, DEVICE, &more)?;
    let tables = Box::new(Tables::open(|name| pins.join(name))?);
    let frontends = tables.snapshot()?.frontends;
    let index = |measured: MeasuredPort| {
        let found = frontends
            .iter()
            .find(|(key, _)| key.address == IpAddr::from(ADDRESS) && key.port == measured.port());
        let (_, frontend) = found.with_context(|| format!("no frontend {}", measured.name()))?;
        anyhow::Ok(frontend.service_port)
    };
    let [web, stream, datagram] = MeasuredPort::ALL;
    let indexes = [index(web)?, index(stream)?, index(datagram)?];
    Ok(Balancer::Millrace { tables, indexes, xdp, _agent: agent })
}

/// With one thread per CPU, which is the default.
fn haproxy(network: &OneNode) -> Result<Balancer> {
    let directory = network.topology.directory();
    let socket = directory.join("haproxy.sock");
    let mut text = format!(
        "global\n    maxconn 4000\n    stats socket {}\n\
         defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1m\n    \
         timeout server 1m\n",
        socket.display()
    );
    for measured in [MeasuredPort::Web, MeasuredPort::Stream] {
        let (name, port) = (measured.name(), measured.port());
        text += &format!("listen {name}\n    bind {ADDRESS}:{port}\n    balance roundrobin\n");
        for (number, backend) in measured.backends().into_iter().enumerate() {
            text += &format!("    server {name}-{number} {backend}\n");
        }
    }
    let file = directory.join("haproxy.cfg");
    std::fs::write(&file, text)?;
    network.node.address("lo", &format!("{ADDRESS}/32"))?;
    // It opens its own connections to the backends.
    network.node.sysctl(&["net.ipv4.ip_local_port_range=1025 65535"])?;
    let mut command = network.node.command("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    let mut process = network.node.spawn(&mut command)?;
    process.wait_until_so("logs its listeners", PATIENCE, |_| {
        total_sessions(&socket, MeasuredPort::Stream.name()).is_ok()
    })?;
    Ok(Balancer::Haproxy { socket, _process: process })
}

/// The number of connections that a listener has accepted, from HAProxy's statistics.
fn total_sessions(socket: &PathBuf, listener: &str) -> Result<u64> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"show stat\n")?;
    let mut table = String::new();
    stream.read_to_string(&mut table)?;
    sessions_of(&table, listener)
}

fn sessions_of(table: &str, listener: &str) -> Result<u64> {
    let mut lines = table.trim_start_matches("# ").lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = columns.iter().position(|name| *name == "stot").context("no column stot")?;
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.starts_with(&[listener, "FRONTEND"]) {
            return Ok(cells.get(column).context("a line is short")?.parse()?);
        }
    }
    bail!("HAProxy has no listener {listener}")
}

/// The backends' responses through the measured frontend: the server, and the client that it sees.
pub fn check_translation(kind: BalancerKind, balancer: &Balancer, network: &OneNode) -> Result<()> {
    let client = if kind == BalancerKind::None { "192.0.2.2" } else { "10.0.0.1" };
    for address in balancer.addresses(MeasuredPort::Web) {
        let seen = network.curl(&format!("http://{address}/client"))?;
        ensure!(seen.trim() == client, "a backend sees {} instead of {client}", seen.trim());
    }
    let mut names = BTreeSet::new();
    // Every backend responds sooner or later, however it is selected.
    for _ in 0..100 {
        for address in balancer.addresses(MeasuredPort::Web) {
            names.insert(network.curl(&format!("http://{address}/"))?.trim().to_owned());
        }
        if names.len() == MeasuredPort::Web.backends().len() {
            return Ok(());
        }
    }
    bail!("only {names:?} answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_found_by_their_column() -> Result<()> {
        let table = "# pxname,svname,scur,stot,\nweb,FRONTEND,1,42,\nweb,web-0,1,40,\n";
        assert_eq!(sessions_of(table, "web")?, 42);
        assert!(sessions_of(table, "stream").is_err());
        Ok(())
    }
}
