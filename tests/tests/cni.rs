//! What kube-proxy serves, on nodes with the network of every kind of plugin, with an agent that was given no
//! interfaces. The table in docs/cni.md is this test's.

use std::io::ErrorKind;

use anyhow::{Context, Result};
use tests::agent::Agent;
use tests::cluster::{
    Answer, CLIENT, Cluster, Ip, Plugin, Scope, Side, Transport, ask, cluster_ip, node_port,
    pod_address, vip,
};
use tests::topology::{Host, SOON, wait_until};

/// Node A takes clients' packets in by XDP, as with a physical network card; node B by tc, as veths do.
const XDP_MODES: [(Side, &str); 2] = [(Side::A, "native"), (Side::B, "auto")];

/// One row of the table: who connects to which address of which Service.
struct Path<'a> {
    name: &'static str,
    client: &'a Host,
    scope: Scope,
    to: String,
    port: u16,
    /// The client's address that the server has to see, if it is that.
    seen_as: Option<String>,
}

/// Every path to a plugin's two Services.
fn paths<'a>(cluster: &'a Cluster, plugin: Plugin, ip: Ip, transport: Transport) -> Vec<Path<'a>> {
    let port = transport.port();
    let node = |side: Side| side.node_address(ip);
    let of_cluster = |scope| (cluster_ip(plugin, scope, ip), port);
    let of_node = |scope, side| (node(side), node_port(plugin, scope));
    let of_balancer = |scope| (vip(plugin, scope, ip), port);
    let outside = &cluster.client;
    let outside_address = Some(CLIENT[ip as usize].to_owned());
    // Pods of a plugin without pods of its own are another's.
    let with_pods = if plugin == Plugin::HostNetwork { Plugin::Routed } else { plugin };
    let pod = |number| cluster.pod(with_pods, number).unwrap_or(outside);
    let own = Some(pod_address(with_pods, Side::A, 1, ip));
    // What leaves the cluster's pod network is masqueraded by the node.
    let unless_masqueraded = own.clone().filter(|_| plugin != Plugin::HostNetwork);
    let rows = [
        ("pod, same node", pod(1), Scope::Near, of_cluster(Scope::Near), own.clone()),
        ("pod, other node", pod(1), Scope::Far, of_cluster(Scope::Far), unless_masqueraded.clone()),
        ("pod, itself", pod(0), Scope::Near, of_cluster(Scope::Near), None),
        ("pod, NodePort here", pod(1), Scope::Near, of_node(Scope::Near, Side::A), own),
        (
            "pod, NodePort here to other node",
            pod(1),
            Scope::Far,
            of_node(Scope::Far, Side::A),
            unless_masqueraded,
        ),
        ("pod, NodePort there", pod(1), Scope::Far, of_node(Scope::Far, Side::B), None),
        (
            "outside, NodePort Local",
            outside,
            Scope::Near,
            of_node(Scope::Near, Side::A),
            outside_address.clone(),
        ),
        ("outside, NodePort Cluster", outside, Scope::Far, of_node(Scope::Far, Side::A), None),
        (
            "outside, NodePort there",
            outside,
            Scope::Far,
            of_node(Scope::Far, Side::B),
            outside_address.clone(),
        ),
        (
            "outside, load balancer Local",
            outside,
            Scope::Near,
            of_balancer(Scope::Near),
            outside_address,
        ),
        ("outside, load balancer Cluster", outside, Scope::Far, of_balancer(Scope::Far), None),
    ];
    let path = |(name, client, scope, (to, port), seen_as)| Path {
        name,
        client,
        scope,
        to,
        port,
        seen_as,
    };
    rows.into_iter().map(path).collect()
}

/// What is wrong with a path, if anything.
fn check(path: &Path<'_>, plugin: Plugin, transport: Transport) -> Result<()> {
    let Answer { server, peer } = ask(path.client, transport, &end(&path.to, path.port))?;
    let expected = format!("{plugin:?}-{}", path.scope.side().name());
    anyhow::ensure!(server == expected, "answered by {server}");
    if let Some(address) = &path.seen_as {
        anyhow::ensure!(peer.ip().to_string() == *address, "seen as {peer}");
    }
    Ok(())
}

fn end(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// A process of the node itself: one that the agent's control group has.
fn ask_from_node(node: &Host, transport: Transport, to: &str, port: u16) -> Result<Answer> {
    let kind = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let script = format!(
        "exec 3<>/dev/{kind}/{to}/{port} && echo hello >&3 && timeout 20 dd bs=512 count=1 status=none <&3"
    );
    Answer::parse(&node.run(["bash", "-c", &script])?)
}

#[test]
fn an_agent_without_configuration_serves_every_path_of_every_plugin() -> Result<()> {
    let cluster = Cluster::new()?;
    let agents = XDP_MODES
        .iter()
        .map(|(side, mode)| cluster.agent(*side, mode))
        .collect::<Result<Vec<_>>>()?;
    let mut wrong = Vec::new();
    let mut checked = 0;
    for plugin in Plugin::ALL {
        for ip in Ip::BOTH {
            for transport in Transport::BOTH {
                let mut note = |name: &str, result: Result<()>| {
                    checked += 1;
                    if let Err(error) = result {
                        wrong.push(format!("{plugin:?} {ip:?} {transport:?} {name}: {error:#}"));
                    }
                };
                for path in paths(&cluster, plugin, ip, transport) {
                    note(path.name, check(&path, plugin, transport));
                }
                for scope in Scope::BOTH {
                    let to = cluster_ip(plugin, scope, ip);
                    let answer =
                        ask_from_node(cluster.node(Side::A), transport, &to, transport.port());
                    let expected = format!("{plugin:?}-{}", scope.side().name());
                    note(
                        &format!("node, {}", scope.name()),
                        answer.and_then(|answer| {
                            anyhow::ensure!(
                                answer.server == expected,
                                "answered by {}",
                                answer.server
                            );
                            Ok(())
                        }),
                    );
                }
            }
        }
    }
    let counters = agents.iter().map(|agent| agent.get(&["counters"]));
    let counters = counters.collect::<Result<Vec<_>>>()?.join("\n");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}\n{counters}", wrong.len(), wrong.join("\n"));
    network_policies_stay_effective(&cluster)?;
    host_ports_of_the_plugin_keep_working(&cluster)?;
    pods_come_and_go(&cluster, &agents[Side::A as usize])
}

/// A network plugin's rules in the forward chain see the pod and the backend, not the Service.
fn network_policies_stay_effective(cluster: &Cluster) -> Result<()> {
    let plugin = Plugin::Routed;
    let from = pod_address(plugin, Side::A, 1, Ip::V4);
    let to = pod_address(plugin, Side::B, 0, Ip::V4);
    let rule = format!(
        "add rule inet firewall forward ip saddr {from} ip daddr {to} reject with tcp reset"
    );
    cluster.node(Side::A).run(["nft", &rule])?;
    let client = cluster.pod(plugin, 1).context("the plugin has pods")?;
    let service = end(&cluster_ip(plugin, Scope::Far, Ip::V4), Transport::Tcp.port());
    let error = ask(client, Transport::Tcp, &service).expect_err("the policy forbids it");
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(ErrorKind::ConnectionRefused), "{error:#}");
    Ok(())
}

/// The plugin `portmap` translates a port of the node to a pod by rules of the firewall.
fn host_ports_of_the_plugin_keep_working(cluster: &Cluster) -> Result<()> {
    const HOST_PORT: u16 = 8081;
    let pod = pod_address(Plugin::Routed, Side::A, 0, Ip::V4);
    let node = cluster.node(Side::A);
    node.run([
        "nft",
        "add chain inet firewall hostports { type nat hook prerouting priority dstnat; }",
    ])?;
    let rule =
        format!("add rule inet firewall hostports tcp dport {HOST_PORT} dnat ip to {pod}:8080");
    node.run(["nft", &rule])?;
    let to = end(&Side::A.node_address(Ip::V4), HOST_PORT);
    let answer = ask(&cluster.client, Transport::Tcp, &to)?;
    assert_eq!(answer.server, "Routed-node-a");
    Ok(())
}

/// The agent attaches to interfaces that are added while it runs, and forgets those that are removed.
fn pods_come_and_go(cluster: &Cluster, agent: &Agent) -> Result<()> {
    const PODS: usize = 12;
    let node = cluster.node(Side::A);
    let service = end(&cluster_ip(Plugin::Routed, Scope::Near, Ip::V4), Transport::Tcp.port());
    for number in 0..PODS {
        let name = format!("late{number}");
        let pod = node.pod(&name, &[&format!("10.247.1.{}", 10 + number)])?;
        let answer = ask(&pod, Transport::Tcp, &service)?;
        assert_eq!(answer.server, "Routed-node-a", "pod {number}");
        node.ip(&format!("link delete {name}"))?;
    }
    let is_forgotten =
        |number| agent.log().contains(&format!("detached from interface device=late{number}\n"));
    wait_until("removed interfaces are forgotten", SOON, || (0..PODS).all(is_forgotten))
}
