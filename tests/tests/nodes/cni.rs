//! What kube-proxy serves, on nodes with the network of every kind of plugin, with an agent that was given no
//! interfaces. The table in docs/cni.md is this test's.

use anyhow::{Context, Result, ensure};
use tests::programs::agent::Agent;
use tests::worlds::cluster::{
    CLIENT, Cluster, Ip, OTHER_TUNNELS, Plugin, Scope, Side, TransportProtocol, ask_from_node,
    ask_server, check_host_ports, check_network_policies, check_several_uplinks, cluster_ip,
    expected_reply, join_port, load_balancer_address, node_port, pod_address,
};
use tests::worlds::topology::{Host, SOON, wait_until};

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
fn paths<'a>(
    cluster: &'a Cluster,
    plugin: Plugin,
    ip: Ip,
    transport: TransportProtocol,
) -> Vec<Path<'a>> {
    let port = transport.port();
    let node = |side: Side| side.node_address(ip);
    let of_cluster = |scope| (cluster_ip(plugin, scope, ip), port);
    let of_node = |scope, side| (node(side), node_port(plugin, scope));
    let of_balancer = |scope| (load_balancer_address(plugin, scope, ip), port);
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
fn check(path: &Path<'_>, plugin: Plugin, transport: TransportProtocol) -> Result<()> {
    let reply = ask_server(path.client, transport, &join_port(&path.to, path.port))?;
    reply.ensure_from(&expected_reply(plugin, path.scope.side()))?;
    if let Some(address) = &path.seen_as {
        ensure!(reply.peer.ip().to_string() == *address, "seen as {}", reply.peer);
    }
    Ok(())
}

#[test]
fn an_agent_without_configuration_serves_every_path_of_every_plugin() -> Result<()> {
    let cluster = Cluster::new()?;
    let agents = XDP_MODES
        .iter()
        .map(|(side, mode)| cluster.agent(*side, mode))
        .collect::<Result<Vec<_>>>()?;
    every_path_is_served(&cluster, &agents)?;
    every_tunnel_is_served(&cluster)?;
    check_network_policies(&cluster)?;
    check_host_ports(&cluster)?;
    pods_come_and_go(&cluster, &agents[Side::A as usize])?;
    check_several_uplinks(&cluster)
}

fn every_path_is_served(cluster: &Cluster, agents: &[Agent]) -> Result<()> {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for plugin in Plugin::ALL {
        for ip in Ip::BOTH {
            for transport in TransportProtocol::BOTH {
                let mut note = |name: &str, result: Result<()>| {
                    checked += 1;
                    if let Err(error) = result {
                        wrong.push(format!("{plugin:?} {ip:?} {transport:?} {name}: {error:#}"));
                    }
                };
                for path in paths(cluster, plugin, ip, transport) {
                    note(path.name, check(&path, plugin, transport));
                }
                for scope in Scope::BOTH {
                    let to = cluster_ip(plugin, scope, ip);
                    let reply =
                        ask_from_node(cluster.node(Side::A), transport, &to, transport.port());
                    let expected = expected_reply(plugin, scope.side());
                    note(
                        &format!("node, {}", scope.name()),
                        reply.and_then(|reply| reply.ensure_from(&expected)),
                    );
                }
            }
        }
    }
    let counters = agents.iter().map(|agent| agent.get(&["counters"]));
    let counters = counters.collect::<Result<Vec<_>>>()?.join("\n");
    ensure!(wrong.is_empty(), "{} of {checked}:\n{}\n{counters}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Paths through the tunnel between the nodes, by tunnels of all kinds that this kernel has.
fn every_tunnel_is_served(cluster: &Cluster) -> Result<()> {
    const PLUGIN: Plugin = Plugin::RawTunnel;
    for tunnel in &OTHER_TUNNELS {
        if !cluster.use_tunnel(tunnel)? {
            println!("skipped, this kernel has no tunnels of type {}", tunnel.kind);
            continue;
        }
        for &ip in tunnel.carries {
            for transport in TransportProtocol::BOTH {
                let paths = paths(cluster, PLUGIN, ip, transport).into_iter();
                let through_tunnel = |path: &Path<'_>| {
                    ["pod, other node", "outside, NodePort Cluster"].contains(&path.name)
                };
                for path in paths.filter(through_tunnel) {
                    check(&path, PLUGIN, transport).with_context(|| {
                        format!("{} {ip:?} {transport:?} {}", tunnel.kind, path.name)
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// The agent attaches to interfaces that are added while it runs, and forgets those that are removed.
fn pods_come_and_go(cluster: &Cluster, agent: &Agent) -> Result<()> {
    const PODS: usize = 12;
    let node = cluster.node(Side::A);
    let service =
        join_port(&cluster_ip(Plugin::Routed, Scope::Near, Ip::V4), TransportProtocol::Tcp.port());
    for number in 0..PODS {
        let name = format!("late{number}");
        let pod = node.pod(&name, &[&format!("10.247.1.{}", 10 + number)])?;
        let reply = ask_server(&pod, TransportProtocol::Tcp, &service)?;
        assert_eq!(reply.server, "Routed-node-a", "pod {number}");
        node.ip(&format!("link delete {name}"))?;
    }
    let is_forgotten =
        |number| agent.log().contains(&format!("detached from interface device=late{number}\n"));
    wait_until("removed interfaces are forgotten", SOON, || (0..PODS).all(is_forgotten))
}
