//! Two nodes of a cluster, wired as network plugins do it, all kinds at once, and a client outside.
//!
//! Each plugin has its own pods and its own path between the nodes, so what it needs from a node is the
//! same as where it is alone. The nodes also have what is usual on real ones: strict reverse path filtering,
//! a firewall that drops packets without a valid connection, and masquerading of what pods send out of the
//! cluster.

mod ask;
mod host_ports;
mod manifests;
mod names;
mod policies;
mod tun;
mod tunnel;
mod uplinks;
mod wiring;

use std::fs;

use anyhow::Result;

use crate::programs::agent::{Agent, SMALL_MAPS};
use crate::worlds::topology::{Echo, Host, Topology};
use tun::Relay;

pub use ask::{Reply, ask_from_node, ask_server};
pub use host_ports::check_host_ports;
pub use names::{
    Ip, Plugin, Scope, Side, TransportProtocol, cluster_ip, expected_reply, join_port,
    load_balancer_address, node_port, pod_address,
};
pub use policies::check_network_policies;
pub use tunnel::{OTHERS as OTHER_TUNNELS, Tunnel};
pub use uplinks::check_several_uplinks;

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
        let (client, nodes) = wiring::create_hosts(&topology)?;
        let pods = Plugin::WITH_PODS
            .iter()
            .map(|&plugin| wiring::create_pods(&topology, plugin, &nodes))
            .collect::<Result<Vec<_>>>()?;
        let relay = wiring::connect_nodes(&topology, &nodes)?;
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

    /// Moves the pods of [`Plugin::RawTunnel`] to another tunnel between the nodes. Returns false if
    /// the kernel has no such tunnels.
    pub fn use_tunnel(&self, tunnel: &Tunnel) -> Result<bool> {
        tunnel::connect_by(tunnel, &self.nodes)
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
                    let name = names::expected_reply(plugin, side);
                    servers
                        .push(host.tcp_echo(&names::join_port(&address, manifests::TCP), &name)?);
                    servers
                        .push(host.udp_echo(&names::join_port(&address, manifests::UDP), &name)?);
                }
            }
        }
        Ok(servers)
    }

    /// Starts an agent on a node, with the default choice of interfaces.
    pub fn agent(&self, side: Side, xdp_mode: &str) -> Result<Agent> {
        let file = self.topology.directory().join("manifests.yaml");
        fs::write(&file, manifests::cluster_manifests())?;
        let pins = self.topology.warm_pins(side.name());
        let own = ["--node-name", side.name(), "--xdp-mode", xdp_mode];
        let more = [&own[..], &SMALL_MAPS].concat();
        Agent::start(self.node(side), &pins, &file, "auto", &more)
    }
}

/// Adds rules to a host's firewall.
fn load_rules(host: &Host, rules: &str) -> Result<()> {
    host.run(["nft", rules]).map(drop)
}
