//! Nodes, pods, and the paths between them.

use anyhow::Result;
use serde_json::Value;

use super::names::{Ip, Plugin, Side, in_pod_network, pod_address, pod_network};
use super::tun::Relay;
use super::{load_rules, tunnel};
use crate::worlds::topology::{Host, Topology};

/// What kubelet and network plugins set up on a node, and what careful administrators add.
const FIREWALL: &str = "
table inet firewall {
  chain input {
    type filter hook input priority filter;
    ct state invalid drop
  }
  chain forward {
    type filter hook forward priority filter;
    ct state invalid drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 10.240.0.0/13 ip daddr != 10.240.0.0/13 masquerade
    ip6 saddr fd00:10::/32 ip6 daddr != fd00:10::/32 masquerade
  }
}
";

/// The client's addresses on the second network.
pub const CLIENT_ON_SECOND: [&str; 2] = ["10.9.0.9", "fd00:9::9"];

/// A client and two nodes on two networks. The nodes' default route leads to the client on the first one.
pub fn create_hosts(topology: &Topology) -> Result<(Host, [Host; 2])> {
    let fabric = topology.host("fabric")?;
    fabric.bridge("lan")?;
    fabric.bridge("second")?;
    let client = topology.host("client")?;
    let port = fabric.port("client").bridge("lan").wire().gro(true);
    let end = client.port("eth0").address("192.0.2.2/24").address("2001:db8::2/64");
    topology.link(end.wire(), port)?;
    let [v4, v6] = CLIENT_ON_SECOND;
    let port = fabric.port("client-1").bridge("second").wire().gro(true);
    let end = client.port("eth1").address(&format!("{v4}/24")).address(&format!("{v6}/64"));
    topology.link(end.wire(), port)?;
    let node = |side: Side| -> Result<Host> {
        let node = topology.router(side.name())?;
        for (bridge, device, port, addresses) in [
            ("lan", "eth0", format!("{}-0", side.name()), lan_addresses(side)),
            ("second", "eth1", format!("{}-1", side.name()), second_addresses(side)),
        ] {
            let [v4, v6] = addresses;
            let port = fabric.port(&port).bridge(bridge).wire().gro(true);
            topology.link(node.port(device).address(&v4).address(&v6).wire(), port)?;
        }
        node.default_route("192.0.2.2")?;
        node.default_route("2001:db8::2")?;
        node.sysctl(&[
            "net.ipv4.conf.all.rp_filter=1",
            "net.ipv4.conf.default.rp_filter=1",
            // Plugins with a bridge require these.
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
        ])?;
        load_rules(&node, FIREWALL)?;
        Ok(node)
    };
    let nodes = [node(Side::A)?, node(Side::B)?];
    for network in ["203.0.113.0/24", "2001:db8:113::/64"] {
        let ip = if network.contains(':') { Ip::V6 } else { Ip::V4 };
        client.route(network, &Side::A.node_address(ip))?;
    }
    Ok((client, nodes))
}

fn lan_addresses(side: Side) -> [String; 2] {
    [format!("{}/24", side.node_address(Ip::V4)), format!("{}/64", side.node_address(Ip::V6))]
}

fn second_addresses(side: Side) -> [String; 2] {
    [format!("{}/24", second_address(side, Ip::V4)), format!("{}/64", second_address(side, Ip::V6))]
}

fn second_address(side: Side, ip: Ip) -> String {
    let number = side.number();
    match ip {
        Ip::V4 => format!("10.9.0.{number}"),
        Ip::V6 => format!("fd00:9::{number}"),
    }
}

/// A plugin's pods: two on node A, one on node B.
pub fn create_pods(topology: &Topology, plugin: Plugin, nodes: &[Host; 2]) -> Result<[Host; 3]> {
    if plugin == Plugin::BridgeAndVxlan {
        for side in Side::BOTH {
            add_pod_bridge(&nodes[side as usize], side)?;
        }
    }
    let pod = |side: Side, number: usize| -> Result<Host> {
        let node = &nodes[side as usize];
        // No longer than an interface's name may be: it is that of the node's end.
        let name = format!("pod{}-{}{number}", plugin as usize, side.name().replace("node-", ""));
        let addresses = Ip::BOTH.map(|ip| pod_address(plugin, side, number, ip));
        let new = NewPod { topology, node, name: &name, side, addresses: &addresses };
        match plugin {
            Plugin::BridgeAndVxlan => new.bridged(),
            Plugin::GatewayAndSecondCard => new.behind_gateway(),
            _ => node.pod(&name, &addresses.each_ref().map(String::as_str)),
        }
    };
    Ok([pod(Side::A, 0)?, pod(Side::A, 1)?, pod(Side::B, 0)?])
}

/// The plugin's gateway on a node.
fn gateway(plugin: Plugin, side: Side, ip: Ip) -> String {
    in_pod_network(plugin, side, ip, 1)
}

fn add_pod_bridge(node: &Host, side: Side) -> Result<()> {
    node.bridge("cni0")?;
    for (ip, length) in [(Ip::V4, 24), (Ip::V6, 64)] {
        let gateway = gateway(Plugin::BridgeAndVxlan, side, ip);
        node.address("cni0", &format!("{gateway}/{length}"))?;
    }
    Ok(())
}

struct NewPod<'a> {
    topology: &'a Topology,
    node: &'a Host,
    name: &'a str,
    side: Side,
    addresses: &'a [String; 2],
}

impl NewPod<'_> {
    /// As the plugins `bridge` and `host-local` do it.
    fn bridged(&self) -> Result<Host> {
        let [v4, v6] = self.addresses;
        let pod = self.topology.host(self.name)?;
        self.topology.link(
            pod.port("eth0").address(&format!("{v4}/24")).address(&format!("{v6}/64")),
            self.node.port(self.name).bridge("cni0"),
        )?;
        for ip in Ip::BOTH {
            pod.default_route(&gateway(Plugin::BridgeAndVxlan, self.side, ip))?;
        }
        Ok(pod)
    }

    /// As the plugin `ptp` does it: the node's end has the gateway's address, without a subnet.
    fn behind_gateway(&self) -> Result<Host> {
        let Self { node, name, .. } = self;
        let pod = self.topology.host(name)?;
        self.topology.link(pod.port("eth0"), node.port(name))?;
        for (ip, address) in Ip::BOTH.into_iter().zip(self.addresses) {
            let gateway = gateway(Plugin::GatewayAndSecondCard, self.side, ip);
            let length = if ip == Ip::V4 { 32 } else { 128 };
            node.address(name, &format!("{gateway}/{length}"))?;
            node.ip(&format!("route add {address} dev {name}"))?;
            pod.address("eth0", &format!("{address}/{length}"))?;
            pod.ip(&format!("route add {gateway} dev eth0"))?;
            pod.default_route(&gateway)?;
        }
        Ok(pod)
    }
}

/// Connects the nodes for each plugin. Returns what carries packets of a tunnel that the kernel lacks.
pub fn connect_nodes(topology: &Topology, nodes: &[Host; 2]) -> Result<Option<Relay>> {
    for side in Side::BOTH {
        let node = &nodes[side as usize];
        let there = side.other();
        for ip in Ip::BOTH {
            let network = |plugin| pod_network(plugin, there, ip);
            node.route(&network(Plugin::Routed), &there.node_address(ip))?;
            node.route(&network(Plugin::GatewayAndSecondCard), &second_address(there, ip))?;
        }
    }
    add_vxlan(nodes)?;
    tunnel::connect_by_tunnel(topology, nodes)
}

/// As flannel does it: neighbours and forwarding entries are static.
fn add_vxlan(nodes: &[Host; 2]) -> Result<()> {
    const DEVICE: &str = "flannel.1";
    let mut macs = Vec::new();
    for side in Side::BOTH {
        let node = &nodes[side as usize];
        let local = side.node_address(Ip::V4);
        node.ip(&format!(
            "link add {DEVICE} type vxlan id 1 local {local} dstport 8472 nolearning"
        ))?;
        node.ip(&format!("link set {DEVICE} up"))?;
        for (ip, length) in [(Ip::V4, 32), (Ip::V6, 128)] {
            let own = in_pod_network(Plugin::BridgeAndVxlan, side, ip, 0);
            node.address(DEVICE, &format!("{own}/{length}"))?;
        }
        let shown: Value =
            serde_json::from_str(&node.ip(&format!("-json link show dev {DEVICE}"))?)?;
        macs.push(shown[0]["address"].as_str().unwrap_or_default().to_owned());
    }
    for side in Side::BOTH {
        let (node, there) = (&nodes[side as usize], side.other());
        let mac = &macs[there as usize];
        let remote = there.node_address(Ip::V4);
        node.run(["bridge", "fdb", "append", mac, "dev", DEVICE, "dst", &remote])?;
        for ip in Ip::BOTH {
            let via = in_pod_network(Plugin::BridgeAndVxlan, there, ip, 0);
            node.ip(&format!("neigh add {via} lladdr {mac} dev {DEVICE} nud permanent"))?;
            let network = pod_network(Plugin::BridgeAndVxlan, there, ip);
            node.ip(&format!("route add {network} via {via} dev {DEVICE} onlink"))?;
        }
    }
    Ok(())
}
