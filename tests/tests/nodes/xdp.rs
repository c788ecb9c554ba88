//! Packets are forwarded by XDP if the interfaces accept redirected frames, otherwise by tc. Driver
//! counters show which.

use anyhow::{Context, Result};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::topology::{Host, Process, SOON, Topology, wait_until};

const VIP: &str = "http://203.0.113.10/";

/// A node, and a client and another node with the backend behind one interface each.
struct TwoInterfaces {
    client: Host,
    node: Host,
    _server: Process,
    topology: Topology,
}

impl TwoInterfaces {
    /// A veth accepts redirected XDP frames if its peer uses NAPI, which GRO enables.
    fn new(takes_what_xdp_sends: bool) -> Result<Self> {
        let topology = Topology::new("xdp")?;
        let (client, node) = (topology.host("client")?, topology.router("node")?);
        let other = topology.host("other")?;
        topology.link(
            client.port("eth0").address("192.0.2.2/24").wire().gro(takes_what_xdp_sends),
            node.port("ext0").address("192.0.2.1/24"),
        )?;
        topology.link(
            other.port("eth0").address("10.0.0.2/24").wire().gro(takes_what_xdp_sends),
            node.port("in0").address("10.0.0.1/24"),
        )?;
        client.default_route("192.0.2.1")?;
        let server = other.http_server(&["10.0.0.2:8080"], "other")?;
        Ok(Self { client, node, _server: server, topology })
    }

    fn agent(&self) -> Result<Agent> {
        let web = Service::new("web", &["10.96.0.10"]).load_balancer(&["203.0.113.10"]);
        let web = web.tcp(80, 8080).there(&["10.0.0.2"]);
        let file = self.topology.write_manifests(&manifests(&[web]))?;
        let pins = self.topology.warm_agent_pins();
        Agent::start(&self.node, &pins, &file, "ext0", &["--device", "in0"])
    }

    fn curl(&self) -> Result<String> {
        self.client.curl(VIP)
    }
}

#[test]
fn connections_are_forwarded_by_xdp_if_devices_accept_redirects() -> Result<()> {
    let network = TwoInterfaces::new(true)?;
    let agent = network.agent()?;
    // The first packets pass through the stack, which resolves the neighbours, and the agent may
    // not know yet that the devices accept redirected frames. Later connections use only XDP.
    wait_until("XDP forwards in both directions", SOON, || {
        let Ok(before) = network.node.redirected_by_xdp("ext0") else { return false };
        let Ok(back) = network.node.redirected_by_xdp("in0") else { return false };
        let answered = network.curl().is_ok_and(|answer| answer == "other\n");
        // At least SYN, ACK, the request and FIN; in the other direction three.
        answered
            && network.node.redirected_by_xdp("ext0").is_ok_and(|now| now >= before + 4)
            && network.node.redirected_by_xdp("in0").is_ok_and(|now| now >= back + 3)
    })
    .with_context(|| agent.get(&["counters"]).unwrap_or_default())
}

#[test]
fn connections_are_forwarded_by_tc_if_devices_accept_no_redirects() -> Result<()> {
    let network = TwoInterfaces::new(false)?;
    let _agent = network.agent()?;
    for _ in 0..5 {
        assert_eq!(network.curl()?, "other\n");
    }
    // The agent's XDP programs on the node's ends enable NAPI there, but not at the peers.
    assert_eq!(
        (network.node.redirected_by_xdp("ext0")?, network.node.redirected_by_xdp("in0")?),
        (0, 0)
    );
    Ok(())
}
