//! Tunnels without link-layer headers between the nodes.

use anyhow::Result;

use super::names::{Ip, Plugin, Side, in_pod_network, join_port, pod_network};
use super::tun::Relay;
use crate::worlds::topology::{Host, Topology};

/// Connects the nodes' pods by tunnels of the kernel: IPv4 by ipip, and IPv6 by wireguard, or by ip6tnl
/// where that is missing. A kernel without tunnels gets tun devices, and a program that connects them.
pub fn connect_by_tunnel(topology: &Topology, nodes: &[Host; 2]) -> Result<Option<Relay>> {
    if !can_add(&nodes[0], "ipip local 192.0.2.11 remote 192.0.2.12") {
        let relay = Relay::start([&nodes[0], &nodes[1]], "tun0")?;
        for ip in Ip::BOTH {
            route_through(nodes, "tun0", ip)?;
        }
        return Ok(Some(relay));
    }
    add_between_nodes(nodes, "ipip", "ipip0", Ip::V4)?;
    if can_add(&nodes[0], "wireguard") && nodes[0].run(["wg", "--version"]).is_ok() {
        add_wireguard(topology, nodes, "wg0", Ip::V6)?;
    } else {
        add_between_nodes(nodes, "ip6tnl mode ip6ip6 encaplimit none", "ipip6", Ip::V6)?;
    }
    Ok(None)
}

/// A kind of tunnels, for [`connect_by`].
pub struct Tunnel {
    pub kind: &'static str,
    /// The family of the nodes' addresses.
    between: Ip,
    /// The families of the pods' addresses.
    pub carries: &'static [Ip],
    /// Its packets have link-layer headers.
    ethernet: bool,
}

/// Kinds that other plugins, or administrators, connect nodes with.
pub const OTHERS: [Tunnel; 4] = [
    Tunnel { kind: "gre", between: Ip::V4, carries: &Ip::BOTH, ethernet: false },
    Tunnel { kind: "sit", between: Ip::V4, carries: &[Ip::V6], ethernet: false },
    Tunnel { kind: "ip6gre", between: Ip::V6, carries: &Ip::BOTH, ethernet: false },
    Tunnel { kind: "geneve", between: Ip::V4, carries: &Ip::BOTH, ethernet: true },
];

/// Connects the nodes' pods by a tunnel of another kind. Returns false if the kernel has none.
pub fn connect_by(tunnel: &Tunnel, nodes: &[Host; 2]) -> Result<bool> {
    let Tunnel { kind, between, carries, ethernet } = *tunnel;
    let device = format!("other-{kind}");
    let add = |side: Side| {
        let (local, remote) = (side.node_address(between), side.other().node_address(between));
        match ethernet {
            true => format!("{kind} id 7 remote {remote}"),
            false => format!("{kind} local {local} remote {remote}"),
        }
    };
    if !can_add(&nodes[0], &add(Side::A)) {
        return Ok(false);
    }
    for side in Side::BOTH {
        let node = &nodes[side as usize];
        node.ip(&format!("link add {device} type {}", add(side)))?;
        node.ip(&format!("link set {device} up"))?;
        for &ip in carries {
            let length = if ip == Ip::V4 { 32 } else { 128 };
            let own = in_pod_network(Plugin::RawTunnel, side, ip, 0);
            node.address(&device, &format!("{own}/{length}"))?;
        }
    }
    for side in Side::BOTH {
        for &ip in carries {
            let network = pod_network(Plugin::RawTunnel, side.other(), ip);
            let via = in_pod_network(Plugin::RawTunnel, side.other(), ip, 0);
            let via = if ethernet { format!("via {via} onlink") } else { String::new() };
            let node = &nodes[side as usize];
            // First, as the gateway must not be behind another interface.
            node.ip(&format!("route delete {network}"))?;
            node.ip(&format!("route add {network} {via} dev {device}"))?;
        }
    }
    Ok(true)
}

fn can_add(node: &Host, kind: &str) -> bool {
    node.ip(&format!("link add probe type {kind}"))
        .and_then(|_| node.ip("link delete probe"))
        .is_ok()
}

fn add_between_nodes(nodes: &[Host; 2], kind: &str, device: &str, ip: Ip) -> Result<()> {
    for side in Side::BOTH {
        let (local, remote) = (side.node_address(ip), side.other().node_address(ip));
        let add = format!("link add {device} type {kind} local {local} remote {remote}");
        nodes[side as usize].ip(&add)?;
    }
    route_through(nodes, device, ip)
}

/// As Calico and Cilium do it: each node may send from its pods' addresses and its own.
fn add_wireguard(topology: &Topology, nodes: &[Host; 2], device: &str, ip: Ip) -> Result<()> {
    const PORT: &str = "51820";
    let key = |side: Side| topology.directory().join(format!("{}.key", side.name()));
    let mut public = Vec::new();
    for side in Side::BOTH {
        let node = &nodes[side as usize];
        node.ip(&format!("link add {device} type wireguard"))?;
        let script = "umask 077; wg genkey > \"$0\"; wg pubkey < \"$0\"";
        let shown =
            node.run(["sh".as_ref(), "-c".as_ref(), script.as_ref(), key(side).as_os_str()])?;
        public.push(shown.trim().to_owned());
    }
    for side in Side::BOTH {
        let there = side.other();
        let allowed =
            format!("{},{}/128", pod_network(Plugin::RawTunnel, there, ip), there.node_address(ip));
        let endpoint = join_port(&there.node_address(ip), 51820);
        let private = key(side).display().to_string();
        nodes[side as usize].run([
            "wg",
            "set",
            device,
            "listen-port",
            PORT,
            "private-key",
            &private,
            "peer",
            &public[there as usize],
            "allowed-ips",
            &allowed,
            "endpoint",
            &endpoint,
        ])?;
    }
    route_through(nodes, device, ip)
}

/// Routes to the pods of the other node through a device, which gets an address.
fn route_through(nodes: &[Host; 2], device: &str, ip: Ip) -> Result<()> {
    let length = if ip == Ip::V4 { 32 } else { 128 };
    for side in Side::BOTH {
        let node = &nodes[side as usize];
        node.ip(&format!("link set {device} up"))?;
        let own = in_pod_network(Plugin::RawTunnel, side, ip, 0);
        node.address(device, &format!("{own}/{length}"))?;
        let network = pod_network(Plugin::RawTunnel, side.other(), ip);
        node.ip(&format!("route add {network} dev {device}"))?;
    }
    Ok(())
}
