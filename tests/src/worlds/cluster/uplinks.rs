//! A node with two network cards, and rules that choose one by the pod's address, as plugins of cloud
//! providers set them up. Replies then leave through another card than the one where requests arrive.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::ask::ask_server;
use super::names::{
    Ip, Plugin, Scope, Side, TransportProtocol, expected_reply, join_port, node_port, pod_network,
};
use super::wiring::CLIENT_ON_SECOND;
use super::{Cluster, load_rules};

const PLUGIN: Plugin = Plugin::Routed;
/// The table of the second network card.
const TABLE: u32 = 7;

/// The rules of docs/cni.md.
const BY_MARK: &str = "
table inet return-path {
  chain prerouting {
    type filter hook prerouting priority mangle;
    iifname eth0 ct state new ct mark set ct mark or 0x80
    iifname != eth0 ct mark and 0x80 == 0x80 meta mark set meta mark or 0x80
  }
}
";

/// Replies through the second card are translated. With [`BY_MARK`] they leave through the first one.
pub fn check_several_uplinks(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(Side::A);
    route_by_source(cluster)?;
    load_rules(&cluster.client, &count_on_second_card())?;
    ask_all(cluster).context("replies through the second network card")?;
    for ip in Ip::BOTH {
        ensure!(
            replies_on_second_card(cluster, ip)? > 0,
            "{ip:?}: no reply was routed by its source"
        );
    }

    load_rules(node, BY_MARK)?;
    for family in ["", "-6 "] {
        node.ip(&format!("{family}rule add priority 100 fwmark 0x80/0x80 lookup main"))?;
    }
    // As the networks of cloud providers do.
    let [v4, v6] = Ip::BOTH.map(|ip| Side::A.node_address(ip));
    for source in [format!("ip saddr {v4}"), format!("ip6 saddr {v6}")] {
        load_rules(&cluster.client, &format!("add rule inet second input {source} drop"))?;
    }
    ask_all(cluster).context("replies by connection marks")
}

fn ask_all(cluster: &Cluster) -> Result<()> {
    for ip in Ip::BOTH {
        for transport in TransportProtocol::BOTH {
            let to = join_port(&Side::A.node_address(ip), node_port(PLUGIN, Scope::Near));
            ask_server(&cluster.client, transport, &to)
                .and_then(|answer| answer.ensure_from(&expected_reply(PLUGIN, Side::A)))
                .with_context(|| format!("{transport:?} {to}"))?;
        }
    }
    Ok(())
}

/// What the pods send out of the cluster leaves through the second network card.
fn route_by_source(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(Side::A);
    // Strict, the kernel would drop requests for these pods, with kube-proxy, too.
    node.sysctl(&["net.ipv4.conf.eth0.rp_filter=2"])?;
    for (ip, family, cluster_network) in
        [(Ip::V4, "", "10.240.0.0/13"), (Ip::V6, "-6 ", "fd00:10::/32")]
    {
        let pods = pod_network(PLUGIN, Side::A, ip);
        let via = CLIENT_ON_SECOND[ip as usize];
        node.ip(&format!("{family}route add throw {cluster_network} table {TABLE}"))?;
        node.ip(&format!("{family}route add default via {via} dev eth1 table {TABLE}"))?;
        node.ip(&format!("{family}rule add from {pods} lookup {TABLE}"))?;
    }
    Ok(())
}

/// The client's counters of replies that arrive on the second network.
fn count_on_second_card() -> String {
    let [v4, v6] = Ip::BOTH.map(|ip| Side::A.node_address(ip));
    format!(
        "table inet second {{
           counter V4 {{ }}
           counter V6 {{ }}
           chain input {{
             type filter hook input priority filter;
             iifname != eth1 accept
             ip saddr {v4} counter name V4
             ip6 saddr {v6} counter name V6
           }}
         }}"
    )
}

fn replies_on_second_card(cluster: &Cluster, ip: Ip) -> Result<u64> {
    let name = format!("{ip:?}");
    let shown =
        cluster.client.run(["nft", "--json", "list", "counter", "inet", "second", &name])?;
    let parsed: Value = serde_json::from_str(&shown)?;
    let listed = parsed["nftables"].as_array().context("a list")?;
    let packets = listed.iter().find_map(|item| item["counter"]["packets"].as_u64());
    packets.context(shown)
}
