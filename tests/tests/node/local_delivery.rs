//! Packets between clients and pods of a node that bypass its stack (`--local-delivery direct`).

use std::io::{Read, Write};
use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Echo, Host, LARGE, SOON, wait_until};

const DIRECT: [&str; 4] = ["--workload-device", "pod-*", "--local-delivery", "direct"];
const VIPS: [&str; 2] = ["203.0.113.10", "[2001:db8:113::10]"];
const ENDS: [&str; 2] = ["10.244.1.10:9000", "[fd00:10:244:1::10]:9000"];

/// Nothing is forwarded by the stack.
const CLOSED: &str = "add table inet closed; \
    add chain inet closed forward { type filter hook forward priority 0; policy drop; }";

/// As many network plugins and firewalls do.
const STATEFUL: &str = "add table inet cni; \
    add chain inet cni post { type nat hook postrouting priority 100; }; \
    add rule inet cni post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade; \
    add rule inet cni post ip6 saddr fd00:10:244::/48 ip6 daddr != fd00:10:244::/48 masquerade; \
    add chain inet cni forward { type filter hook forward priority 0; }; \
    add rule inet cni forward ct state invalid drop";

fn service() -> Service {
    Service::new("web", &["10.96.0.10", "fd00:10:96::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
        .tcp(80, 8080)
        .tcp(9000, 9000)
        .udp(53, 9000)
        .here(&["10.244.1.10", "fd00:10:244:1::10"])
}

struct Case {
    network: OneNode,
    agent: Agent,
    servers: Vec<Echo>,
}

impl Case {
    fn new(more: &[&str]) -> Result<Self> {
        let network = OneNode::with_pods(2)?;
        let servers = serve(&network.pods[0].host, "pod-0")?;
        let agent = network.agent_with(&manifests(&[service()]), more)?;
        Ok(Self { network, agent, servers })
    }

    /// Gets a page and a large one, sends several MB and gets them back, and exchanges datagrams, in
    /// both families.
    fn exchange(&self, client: &Host) -> Result<()> {
        for vip in VIPS {
            let what = || {
                let counters = self.agent.get(&["counters"]).unwrap_or_default();
                format!("{} to {vip}\n{counters}", client.name())
            };
            ensure!(client.curl(&format!("http://{vip}/"))?.trim() == "pod-0", what());
            let size = client.download(&format!("http://{vip}/large")).with_context(what)?;
            ensure!(size == LARGE, "{size} bytes");
            upload(client, &format!("{vip}:9000")).with_context(what)?;
            let socket = client.udp_socket(any(vip))?;
            for size in [1, 1000] {
                ask(&socket, &format!("{vip}:53"), size, "pod-0").with_context(what)?;
            }
        }
        Ok(())
    }
}

fn serve(pod: &Host, name: &str) -> Result<Vec<Echo>> {
    let both = |end: &&str| Ok([pod.tcp_echo(end, name)?, pod.udp_echo(end, name)?]);
    Ok(ENDS.iter().map(both).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn any(vip: &str) -> &'static str {
    if vip.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }
}

/// Four MiB each way.
fn upload(client: &Host, to: &str) -> Result<()> {
    let mut message: Vec<u8> = (0..4 << 20).map(|number| b'a' + (number % 23) as u8).collect();
    message.push(b'\n');
    let connection = client.tcp_connect(to)?;
    (&connection).write_all(&message)?;
    connection.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    (&connection).read_to_end(&mut answer)?;
    ensure!(answer.ends_with(&message), "{} bytes came back", answer.len());
    Ok(())
}

/// The server that echoes a datagram, from the address that it was sent to.
fn ask(socket: &UdpSocket, to: &str, size: usize, server: &str) -> Result<()> {
    let message = vec![b'x'; size];
    socket.send_to(&message, to)?;
    let mut answer = vec![0; 1 << 16];
    let (length, from) = socket.recv_from(&mut answer).context("no reply")?;
    ensure!(from.to_string() == to, "sent to {to}, reply from {from}");
    let answer = &answer[..length];
    ensure!(answer.starts_with(server.as_bytes()) && answer.ends_with(&message), "another reply");
    Ok(())
}

#[test]
fn what_is_delivered_directly_bypasses_the_firewall() -> Result<()> {
    for xdp in ["off", "native"] {
        let case = Case::new(&[&DIRECT[..], &["--xdp-mode", xdp]].concat())?;
        case.network.node.run(["nft", CLOSED])?;
        let OneNode { client, pods, .. } = &case.network;
        for client in [client, &pods[1].host] {
            case.exchange(client).with_context(|| format!("XDP {xdp}"))?;
        }
    }
    Ok(())
}

#[test]
fn by_default_the_firewall_filters() -> Result<()> {
    let case = Case::new(&DIRECT[..2])?;
    let url = format!("http://{}/", VIPS[0]);
    assert_eq!(case.network.curl(&url)?.trim(), "pod-0");
    case.network.node.run(["nft", CLOSED])?;
    assert!(case.network.client.curl_with(&["--max-time", "2"], &url).is_err());
    Ok(())
}

/// Replies bypass the stack, too: it would drop them as invalid, or give them the node's address.
#[test]
fn rules_by_connection_state_do_not_disturb() -> Result<()> {
    for xdp in ["off", "native"] {
        let case = Case::new(&[&DIRECT[..], &["--xdp-mode", xdp]].concat())?;
        case.network.node.run(["nft", STATEFUL])?;
        let OneNode { client, pods, .. } = &case.network;
        for client in [client, &pods[1].host] {
            case.exchange(client).with_context(|| format!("XDP {xdp}"))?;
        }
    }
    Ok(())
}

/// Fragments pass the stack, and a pod reaches itself as without direct delivery.
#[test]
fn what_is_not_delivered_directly_arrives_too() -> Result<()> {
    let case = Case::new(&DIRECT)?;
    let OneNode { client, pods, .. } = &case.network;
    for vip in VIPS {
        for client in [client, &pods[1].host] {
            let socket = client.udp_socket(any(vip))?;
            for size in [8_000, 10, 60_000] {
                ask(&socket, &format!("{vip}:53"), size, "pod-0")?;
            }
        }
        assert_eq!(pods[0].host.curl(&format!("http://{vip}/"))?.trim(), "pod-0");
    }
    Ok(())
}

/// A pod is replaced by one with the same addresses, with an agent and without. Meanwhile nothing is
/// delivered to another pod.
#[test]
fn a_pod_with_a_new_interface_is_found_at_once() -> Result<()> {
    let mut case = Case::new(&DIRECT)?;
    let client = &case.network.client;
    let sockets = VIPS.map(|vip| client.udp_socket(any(vip)));
    let sockets = sockets.into_iter().collect::<Result<Vec<_>>>()?;
    let node = &case.network.node;
    let mut agent = Some(case.agent);
    for name in ["pod-0", "pod-2", "pod-3"] {
        if name == "pod-3" {
            agent.take().context("the agent has ended before")?.kill();
        }
        if name != "pod-0" {
            case.servers.clear();
            for old in ["pod-0", "pod-2"] {
                let _ = node.ip(&format!("link delete {old}"));
            }
            let pod = node.pod(name, &["10.244.1.10", "fd00:10:244:1::10"])?;
            case.servers.extend(serve(&pod, name)?);
        }
        for (socket, vip) in sockets.iter().zip(VIPS) {
            let to = format!("{vip}:53");
            for _ in 0..20 {
                ask(socket, &to, 100, name).with_context(|| format!("{name} {vip}"))?;
            }
        }
        if agent.is_some() {
            // And it is delivered directly.
            let reaches = || {
                let all = sockets.iter().zip(VIPS);
                all.into_iter().all(|(socket, vip)| {
                    let _ = socket.set_read_timeout(Some(std::time::Duration::from_millis(200)));
                    ask(socket, &format!("{vip}:53"), 100, name).is_ok()
                })
            };
            node.run(["nft", CLOSED])?;
            wait_until("it is delivered directly", SOON, reaches)?;
            node.run(["nft", "delete table inet closed"])?;
        }
    }
    Ok(())
}
