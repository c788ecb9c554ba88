//! Network policies as Calico and kube-router enforce them: rules in the nodes' forward chains, which see
//! clients and endpoints, not Services.

use anyhow::{Context, Result};

use super::ask::{ask_server, ensure_refused};
use super::names::{
    Ip, Plugin, Scope, Side, TransportProtocol, cluster_ip, join_port, node_port, pod_address,
};
use super::{Cluster, load_rules, names};

const PLUGIN: Plugin = Plugin::Routed;
const TABLE: &str = "network-policies";

/// One pod may connect to the plugin's first pod on each node, and nothing else may.
pub fn check_network_policies(cluster: &Cluster) -> Result<()> {
    for side in Side::BOTH {
        load_rules(cluster.node(side), &ingress(side))?;
    }
    let pod = |plugin, number| cluster.pod(plugin, number).context("the plugin has pods");
    for ip in Ip::BOTH {
        for scope in Scope::BOTH {
            let service = join_port(&cluster_ip(PLUGIN, scope, ip), TransportProtocol::Tcp.port());
            let reply = ask_server(pod(PLUGIN, 1)?, TransportProtocol::Tcp, &service)?;
            reply.ensure_from(&names::expected_reply(PLUGIN, scope.side()))?;
            let forbidden = match scope {
                Scope::Near => pod(Plugin::GatewayAndSecondCard, 0)?,
                Scope::Far => pod(PLUGIN, 0)?,
            };
            ensure_refused(forbidden, &service).context("the endpoint's node forbids it")?;
        }
        let to = join_port(&Side::A.node_address(ip), node_port(PLUGIN, Scope::Near));
        ensure_refused(&cluster.client, &to).context("clients outside are forbidden")?;

        load_rules(cluster.node(Side::A), &egress(ip))?;
        let far = join_port(&cluster_ip(PLUGIN, Scope::Far, ip), TransportProtocol::Tcp.port());
        ensure_refused(pod(PLUGIN, 1)?, &far).context("the client's node forbids it")?;
    }
    for side in Side::BOTH {
        cluster.node(side).run(["nft", "delete", "table", "inet", TABLE])?;
    }
    Ok(())
}

/// Established connections are accepted by their state, as these plugins do it.
fn ingress(side: Side) -> String {
    let [pod4, pod6] = Ip::BOTH.map(|ip| pod_address(PLUGIN, side, 0, ip));
    let [client4, client6] = Ip::BOTH.map(|ip| pod_address(PLUGIN, Side::A, 1, ip));
    format!(
        "table inet {TABLE} {{
           chain pod {{
             ct state established,related accept
             ip saddr {client4} tcp dport 8080 accept
             ip6 saddr {client6} tcp dport 8080 accept
             meta l4proto tcp reject with tcp reset
           }}
           chain forward {{
             type filter hook forward priority -1;
             ip daddr {pod4} jump pod
             ip6 daddr {pod6} jump pod
           }}
         }}"
    )
}

/// Forbids the client to connect to the pod of the other node.
fn egress(ip: Ip) -> String {
    let family = match ip {
        Ip::V4 => "ip",
        Ip::V6 => "ip6",
    };
    let (from, to) = (pod_address(PLUGIN, Side::A, 1, ip), pod_address(PLUGIN, Side::B, 0, ip));
    format!(
        "insert rule inet {TABLE} forward {family} saddr {from} {family} daddr {to} \
         reject with tcp reset"
    )
}
