//! Datagrams larger than any frame, in both directions: they pass through the node in fragments.

use anyhow::{Context, Result, ensure};
use tests::manifests::{here, manifests, there};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{Echo, Host};

/// Bytes: six fragments, and more than forty.
const SIZES: [usize; 2] = [8_000, 60_000];

/// client - node - pod-0
///             \ - other
struct Case {
    network: OneNode,
    agent: Agent,
    _servers: Vec<Echo>,
}

impl Case {
    fn new(more: &[&str]) -> Result<Self> {
        let network = OneNode::warm(2)?;
        let other = network.other_node()?;
        // With threaded NAPI several frames are processed in one poll, as with real network cards.
        network.node.run(["ethtool", "-K", DEVICE, "gro", "on"])?;
        let write =
            format!("mount -t sysfs none /sys && echo 1 > /sys/class/net/{DEVICE}/threaded");
        network.node.run(["unshare", "--mount", "sh", "-c", &write])?;
        let pod = &network.pods[0].host;
        let servers = [
            (pod, "10.244.1.10:9000", "here"),
            (pod, "[fd00:10:244:1::10]:9000", "here"),
            (&other, "10.0.0.2:9000", "there"),
            (&other, "[fd00:a::2]:9000", "there"),
        ];
        let servers = servers.map(|(host, address, name)| host.udp_echo(address, name));
        let servers = servers.into_iter().collect::<Result<_>>()?;
        let services = [here(), there()].map(|service| service.udp(53, 9000));
        let devices = ["--device", "in0", "--workload-device", "pod-*"];
        let more: Vec<_> = devices.iter().chain(more).copied().collect();
        let agent = network.agent_with(&manifests(&services), &more)?;
        Ok(Self { network, agent, _servers: servers })
    }

    /// Sends datagrams of each size over one flow, which the server of this name must echo. Already
    /// the first packet of the flow is a fragment.
    fn exchange(&self, client: &Host, to: &str, name: &str) -> Result<()> {
        let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = client.udp_socket(any)?;
        for size in SIZES.into_iter().cycle().take(2 * SIZES.len()) {
            let message: Vec<u8> = (0..size).map(|number| ((number * 31) >> 5) as u8).collect();
            socket.send_to(&message, to)?;
            let mut answer = vec![0; 1 << 16];
            let received = socket.recv_from(&mut answer);
            let (length, from) = received.with_context(|| {
                let counters = self.agent.get(&["counters"]).unwrap_or_default();
                format!("from {} to {to}, {size} bytes\n{counters}", client.name())
            })?;
            let answer = &answer[..length];
            ensure!(from.to_string() == to, "sent to {to}, reply from {from}");
            ensure!(answer.starts_with(name.as_bytes()), "{to}: the reply is not from {name}");
            ensure!(answer.ends_with(&message), "{to}: the {size} bytes were modified");
        }
        Ok(())
    }

    /// From outside and from a pod, to backends on this node and on another one.
    fn exchange_all(&self) -> Result<()> {
        let Self { network, .. } = self;
        for (client, to, name) in [
            (&network.client, "203.0.113.10:53", "here"),
            (&network.client, "[2001:db8:113::10]:53", "here"),
            (&network.client, "203.0.113.11:53", "there"),
            (&network.client, "[2001:db8:113::11]:53", "there"),
            (&network.pods[1].host, "10.96.0.10:53", "here"),
            (&network.pods[1].host, "[fd00:10:96::a]:53", "here"),
            (&network.pods[1].host, "10.96.0.11:53", "there"),
            (&network.pods[1].host, "[fd00:10:96::b]:53", "there"),
        ] {
            self.exchange(client, to, name)?;
        }
        Ok(())
    }
}

#[test]
fn large_datagrams_pass_in_fragments_in_both_directions() -> Result<()> {
    Case::new(&[])?.exchange_all()
}

#[test]
fn large_datagrams_pass_in_fragments_without_xdp() -> Result<()> {
    Case::new(&["--xdp-mode", "off"])?.exchange_all()
}
