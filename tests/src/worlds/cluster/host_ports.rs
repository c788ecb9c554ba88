//! Ports of a node that lead to a pod (`hostPort`), as the CNI plugin `portmap` makes them: by address
//! translation in the node's firewall.

use anyhow::{Context, Result};

use super::ask::{ask_from_node, ask_server};
use super::names::{Ip, Plugin, Side, TransportProtocol, join_port, pod_address};
use super::{Cluster, load_rules, manifests, names};

const PLUGIN: Plugin = Plugin::Routed;
const PORT: u16 = 8081;

pub fn check_host_ports(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(Side::A);
    load_rules(node, &rules())?;
    let server = names::expected_reply(PLUGIN, Side::A);
    let pod = |number| cluster.pod(PLUGIN, number).context("the plugin has pods");
    for ip in Ip::BOTH {
        let address = Side::A.node_address(ip);
        let to = join_port(&address, PORT);
        for transport in TransportProtocol::BOTH {
            for (who, client) in [
                ("outside", &cluster.client),
                ("another pod", pod(1)?),
                ("the pod itself", pod(0)?),
            ] {
                let reply = ask_server(client, transport, &to);
                reply
                    .and_then(|reply| reply.ensure_from(&server))
                    .with_context(|| format!("{who}: {transport:?} {to}"))?;
            }
            ask_from_node(node, transport, &address, PORT)
                .and_then(|reply| reply.ensure_from(&server))
                .with_context(|| format!("the node: {transport:?} {to}"))?;
        }
    }
    node.run(["nft", "delete", "table", "inet", "hostports"]).map(drop)
}

/// The pod's own connections are masqueraded, so that it does not see its own address as a client's.
fn rules() -> String {
    let [v4, v6] = Ip::BOTH.map(|ip| pod_address(PLUGIN, Side::A, 0, ip));
    let (tcp, udp) = (manifests::TCP, manifests::UDP);
    format!(
        "table inet hostports {{
           chain ports {{
             ip saddr {v4} meta mark set meta mark or 0x2000
             ip6 saddr {v6} meta mark set meta mark or 0x2000
             meta nfproto ipv4 tcp dport {PORT} dnat ip to {v4}:{tcp}
             meta nfproto ipv4 udp dport {PORT} dnat ip to {v4}:{udp}
             meta nfproto ipv6 tcp dport {PORT} dnat ip6 to [{v6}]:{tcp}
             meta nfproto ipv6 udp dport {PORT} dnat ip6 to [{v6}]:{udp}
           }}
           chain prerouting {{
             type nat hook prerouting priority dstnat;
             fib daddr type local jump ports
           }}
           chain output {{
             type nat hook output priority -100;
             fib daddr type local jump ports
           }}
           chain postrouting {{
             type nat hook postrouting priority srcnat;
             meta mark and 0x2000 == 0x2000 masquerade
           }}
         }}"
    )
}
