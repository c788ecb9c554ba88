//! Path MTU discovery through the balancer: full-sized packets fit on neither side's path, and both
//! sides learn that only from ICMP errors about packets that were translated.

use anyhow::{Context, Result};
use tests::load::upload::upload_file;
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::topology::{Host, LARGE, Port, Process, Topology};

/// client - outer =(1400)= inner - node - pod
///                                  \ gate =(1300)= other
struct Narrow {
    client: Host,
    other: Host,
    agent: Agent,
    _server: Process,
    _topology: Topology,
}

impl Narrow {
    fn new() -> Result<Self> {
        let topology = Topology::new("path-mtu")?;
        let (client, pod, other) =
            (topology.host("client")?, topology.host("pod")?, topology.host("other")?);
        let router = |name| topology.router(name);
        let (outer, inner, gate) = (router("outer")?, router("inner")?, router("gate")?);
        let node = router("node")?;
        for (one, one_device, other, other_device, network, mtu) in [
            (&client, "eth0", &outer, "near", 1, 1500),
            (&outer, "far", &inner, "far", 2, 1400),
            (&inner, "near", &node, "ext0", 3, 1500),
            (&node, "pod0", &pod, "eth0", 4, 1500),
            (&node, "in0", &gate, "near", 5, 1500),
            (&gate, "far", &other, "eth0", 6, 1300),
        ] {
            let left = numbered(one.port(one_device), network, 1).mtu(mtu).wire();
            let right = numbered(other.port(other_device), network, 2).mtu(mtu).wire();
            topology.link(left, right)?;
        }
        for (host, to, network, number) in [
            (&client, "default", 1, 2),
            (&outer, "default", 2, 2),
            (&inner, "default", 3, 2),
            (&node, "default", 3, 1),
            (&pod, "default", 4, 1),
            (&gate, "default", 5, 1),
            (&other, "default", 6, 1),
        ] {
            for (via, _) in addresses(network, number) {
                host.route(to, &via)?;
            }
        }
        // Networks that the default route does not reach.
        for (host, to, network, number) in [(&inner, 1, 2, 1), (&node, 6, 5, 2)] {
            for ((to, bits), (via, _)) in addresses(to, 0).iter().zip(addresses(network, number)) {
                host.route(&format!("{to}/{bits}"), &via)?;
            }
        }
        let file = topology.write_manifests(&manifests(&services()))?;
        let server = pod.http_server(&["10.7.4.2:8080", "[fd07:4::2]:8080"], "pod")?;
        let pins = topology.warm_agent_pins();
        let agent = Agent::start(&node, &pins, &file, "ext0", &["--device", "in0"])?;
        Ok(Self { client, other, agent, _server: server, _topology: topology })
    }

    fn counters(&self) -> String {
        self.agent.get(&["counters"]).unwrap_or_default()
    }
}

fn numbered(port: Port<'_>, network: u8, number: u8) -> Port<'_> {
    let addresses = addresses(network, number).into_iter();
    addresses.fold(port, |port, (address, bits)| port.address(&format!("{address}/{bits}")))
}

/// The addresses of a host in a network, IPv4 and IPv6, with their prefix lengths.
fn addresses(network: u8, number: u8) -> [(String, u8); 2] {
    [(format!("10.7.{network}.{number}"), 24), (format!("fd07:{network}::{number}"), 64)]
}

fn services() -> [Service; 2] {
    let here = Service::new("here", &["10.96.0.10", "fd00:10:96::a"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
        .tcp(80, 8080)
        .here(&["10.7.4.2", "fd07:4::2"]);
    let there = Service::new("there", &["10.96.0.11", "fd00:10:96::b"])
        .load_balancer(&["203.0.113.11", "2001:db8:113::11"])
        .tcp(9000, 9000)
        .there(&["10.7.6.2", "fd07:6::2"]);
    [here, there]
}

#[test]
fn a_large_response_crosses_a_smaller_mtu_to_the_client() -> Result<()> {
    let network = Narrow::new()?;
    for url in ["http://203.0.113.10/large", "http://[2001:db8:113::10]/large"] {
        let size = network.client.download(url).with_context(|| network.counters())?;
        assert_eq!(size, LARGE);
    }
    Ok(())
}

#[test]
fn a_large_request_crosses_a_smaller_mtu_to_another_node() -> Result<()> {
    let network = Narrow::new()?;
    for (sink, frontend) in
        [("10.7.6.2:9000", "203.0.113.11:9000"), ("[fd07:6::2]:9000", "[2001:db8:113::11]:9000")]
    {
        let arrived = upload_file(&network.client, frontend, &network.other, sink);
        arrived.with_context(|| network.counters())?;
    }
    Ok(())
}
