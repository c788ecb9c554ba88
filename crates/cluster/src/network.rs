//! The cluster's network: hosts as network namespaces, and the addresses of everything.
//!
//! ```text
//! client ── lan (router; API server, etcd, ...) ── bridge ── n1, n2, n3
//! ```
//!
//! The client is outside the nodes' subnet, as most clients of a load balancer are.

use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tests::worlds::topology::{Host, SOON, Topology, run_to_end, wait_until};

/// Addresses of the API server, in the router's namespace.
pub const ROUTER: [&str; 2] = ["172.30.0.1", "fd00:30::1"];
pub(crate) const API_PORT: u16 = 6443;
pub(crate) const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];
/// The first address of the ranges: the Service `kubernetes`.
pub(crate) const KUBERNETES_SERVICE: [&str; 2] = ["10.96.0.1", "fd00:96::1"];
pub(crate) const DNS_SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::a"];
pub(crate) const POD_RANGES: [&str; 2] = ["10.244.0.0/16", "fd00:244::/48"];
/// Addresses for Services of type LoadBalancer, in the nodes' subnet: nodes announce them by ARP and neighbour discovery.
pub const POOL: [&str; 2] = ["172.30.0.200-172.30.0.250", "fd00:30::200-fd00:30::250"];
/// The MTU inside VXLAN over IPv6.
const OVERLAY_MTU: u16 = 1430;

/// How pods of different nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Cni {
    /// A bridge on each node, and routes between the nodes
    Bridge,
    /// A bridge on each node, and VXLAN between the nodes, as flannel sets it up
    Overlay,
}

/// Addresses of a node and its pods. The second of each is IPv6, which a cluster with one address family lacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeAddresses {
    pub name: String,
    pub node: Vec<String>,
    pub pods: Vec<String>,
    /// Of the node's interface.
    pub mac: String,
    /// The VXLAN device's address, the first of each pod subnet.
    tunnel: Vec<String>,
    tunnel_mac: String,
}

impl NodeAddresses {
    fn new(index: usize, families: usize) -> Self {
        let number = index + 1;
        let first = |all: [String; 2]| all.into_iter().take(families).collect();
        Self {
            name: format!("n{number}"),
            node: first([format!("172.30.0.{}", 10 + number), format!("fd00:30::{}", 10 + number)]),
            pods: first([format!("10.244.{number}.0/24"), format!("fd00:244:0:{number}::/64")]),
            mac: format!("02:00:00:00:31:{number:02x}"),
            tunnel: first([format!("10.244.{number}.0"), format!("fd00:244:0:{number}::")]),
            tunnel_mac: format!("02:00:00:00:30:{number:02x}"),
        }
    }
}

#[must_use = "it is removed when dropped"]
pub struct Network {
    pub router: Host,
    /// Outside the nodes' subnet.
    pub client: Host,
    pub nodes: Vec<(Host, NodeAddresses)>,
    pub topology: Topology,
    cni: Cni,
}

impl Network {
    pub fn new(nodes: usize, cni: Cni, families: usize) -> Result<Self> {
        let topology = Topology::new("cluster")?;
        let router = topology.router("lan")?;
        let client = topology.host("client")?;
        topology.link(
            client.port("eth0").addresses(&["172.31.0.2/24", "fd00:31::2/64"][..families]),
            router.port("client0").addresses(&["172.31.0.1/24", "fd00:31::1/64"][..families]),
        )?;
        client.default_routes(&["172.31.0.1", "fd00:31::1"][..families])?;
        router.bridge("lan0")?;
        for (address, length) in ROUTER.iter().zip([24, 64]).take(families) {
            router.address("lan0", &format!("{address}/{length}"))?;
        }
        let mut network = Self { router, client, nodes: Vec::new(), topology, cni };
        for index in 0..nodes {
            let addresses = NodeAddresses::new(index, families);
            network.nodes.push((network.connect_node(&addresses)?, addresses));
        }
        for (host, addresses) in &network.nodes {
            if cni == Cni::Bridge {
                route_pods(&network.router, addresses)?;
            }
            network.connect_pods(host, addresses)?;
        }
        Ok(network)
    }

    /// Disconnects a node, as a power failure does.
    pub fn disconnect_node(&self, name: &str) -> Result<()> {
        self.router.ip(&format!("link delete to-{name}")).map(drop)
    }

    /// Replaces the namespace of a node without processes by a new one, connected as the old one was.
    pub fn renew_node(&mut self, index: usize) -> Result<&Host> {
        let (host, addresses) = self.nodes[index].clone();
        wait_until("no process is on the node", SOON, || {
            let pids = run_to_end(Command::new("ip").args(["netns", "pids", host.namespace()]));
            pids.is_ok_and(|pids| pids.trim().is_empty())
        })?;
        run_to_end(Command::new("ip").args(["netns", "delete", host.namespace()]))?;
        let host = self.connect_node(&addresses)?;
        self.connect_pods(&host, &addresses)?;
        self.nodes[index].0 = host;
        Ok(&self.nodes[index].0)
    }

    /// Makes the namespace of a node.
    fn connect_node(&self, addresses: &NodeAddresses) -> Result<Host> {
        let node = self.topology.router(&addresses.name)?;
        let families = addresses.node.len();
        let with_length = addresses.node.iter().zip([24, 64]);
        let with_length: Vec<_> =
            with_length.map(|(address, length)| format!("{address}/{length}")).collect();
        let with_length: Vec<&str> = with_length.iter().map(String::as_str).collect();
        self.topology.link(
            node.port("eth0").addresses(&with_length).mac(&addresses.mac),
            self.router.port(&format!("to-{}", addresses.name)).bridge("lan0"),
        )?;
        node.default_routes(&ROUTER[..families])?;
        // Packets between pods of one node pass the node's rules, as on a machine with br_netfilter.
        let _ = node.sysctl(&[
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
        ]);
        Ok(node)
    }

    /// Lets a node reach the pods of all others.
    fn connect_pods(&self, host: &Host, own: &NodeAddresses) -> Result<()> {
        let others = self.nodes.iter().map(|(_, other)| other);
        let mut others = others.filter(|other| other.name != own.name);
        match self.cni {
            Cni::Bridge => others.try_for_each(|other| route_pods(host, other)),
            Cni::Overlay => tunnel_pods(host, own, others),
        }
    }
}

/// Routes the subnet of a node's pods by that node.
fn route_pods(host: &Host, to: &NodeAddresses) -> Result<()> {
    to.pods.iter().zip(&to.node).try_for_each(|(pods, node)| host.route(pods, node))
}

/// Sets up VXLAN to the other nodes with permanent neighbours, as flannel does. What pods send out of the cluster gets the
/// node's address.
fn tunnel_pods<'a>(
    host: &Host,
    own: &NodeAddresses,
    others: impl Iterator<Item = &'a NodeAddresses>,
) -> Result<()> {
    let (mac, local) = (&own.tunnel_mac, &own.node[0]);
    host.ip(&format!(
        "link add flannel.1 address {mac} mtu {OVERLAY_MTU} type vxlan id 1 local {local} dstport 8472 nolearning dev eth0"
    ))?;
    host.ip("link set flannel.1 up")?;
    for (tunnel, length) in own.tunnel.iter().zip([32, 128]) {
        host.address("flannel.1", &format!("{tunnel}/{length}"))?;
    }
    for other in others {
        let (mac, node) = (&other.tunnel_mac, &other.node[0]);
        host.run(["bridge", "fdb", "append", mac, "dev", "flannel.1", "dst", node])?;
        for (tunnel, pods) in other.tunnel.iter().zip(&other.pods) {
            host.ip(&format!("neigh replace {tunnel} lladdr {mac} dev flannel.1 nud permanent"))?;
            // For IPv6, a gateway that is the subnet's first address would be this router's own anycast address.
            let route = if tunnel.contains(':') {
                host.ip(&format!("route add {tunnel}/128 dev flannel.1"))?;
                format!("route add {pods} via {tunnel} dev flannel.1")
            } else {
                format!("route add {pods} via {tunnel} dev flannel.1 onlink")
            };
            host.ip(&route)?;
        }
    }
    let mut rules = "add table inet flannel\n\
        add chain inet flannel out { type nat hook postrouting priority 100; }\n"
        .to_owned();
    for (pods, (all, family)) in own.pods.iter().zip(POD_RANGES.iter().zip(["ip", "ip6"])) {
        rules += &format!(
            "add rule inet flannel out {family} saddr {pods} {family} daddr != {all} masquerade\n"
        );
    }
    host.run(["nft", &rules]).map(drop)
}
