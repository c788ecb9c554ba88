//! Backends on other nodes: connections are forwarded with SNAT to an address of this node.

use std::ffi::OsStr;
use std::io::{Read, Write};

use anyhow::{Context, Result};
use tests::manifests::{Service, manifests};
use tests::programs::agent::{Agent, program};
use tests::worlds::topology::{Host, LARGE, Process, SOON, Topology, wait_until};

const VIP: &str = "http://203.0.113.10/";
const VIP6: &str = "http://[2001:db8:113::10]/";

/// A client, a node with a Service, and another node with its backend.
struct TwoNodes {
    client: Host,
    node: Host,
    other: Host,
    _server: Process,
    topology: Topology,
}

impl TwoNodes {
    /// The other node is behind a second interface. It has no route to the client's network.
    fn on_two_devices() -> Result<Self> {
        let topology = Topology::new("forwarding")?;
        let client = topology.host("client")?;
        let node = topology.router("node")?;
        let other = topology.host("other")?;
        topology.link(
            client.port("eth0").addresses(&["192.0.2.2/24", "2001:db8::2/64"]).wire(),
            node.port("ext0").addresses(&["192.0.2.1/24", "2001:db8::1/64"]),
        )?;
        topology.link(
            other.port("eth0").addresses(&["10.0.0.2/24", "fd00:a::2/64"]).wire(),
            node.port("in0").addresses(&["10.0.0.1/24", "fd00:a::1/64"]),
        )?;
        client.default_routes(&["192.0.2.1", "2001:db8::1"])?;
        Self::serving(topology, client, node, other)
    }

    /// All hosts are on one Ethernet, so packets leave the node by the interface on which they
    /// arrived. The other node is in another subnet, to which the client has no direct route.
    fn on_one_device() -> Result<Self> {
        let topology = Topology::new("forwarding")?;
        let (client, fabric) = (topology.host("client")?, topology.host("fabric")?);
        let (node, other) = (topology.router("node")?, topology.host("other")?);
        fabric.bridge("br0")?;
        for (host, device, addresses, port) in [
            (&client, "eth0", ["192.0.2.2/24", "2001:db8::2/64"], "p1"),
            (&node, "ext0", ["192.0.2.1/24", "2001:db8::1/64"], "p2"),
            (&other, "eth0", ["10.0.0.2/24", "fd00:a::2/64"], "p3"),
        ] {
            let port = fabric.port(port).bridge("br0").wire().gro(true);
            topology.link(host.port(device).addresses(&addresses).wire(), port)?;
        }
        node.address("ext0", "10.0.0.1/24")?;
        node.address("ext0", "fd00:a::1/64")?;
        client.default_routes(&["192.0.2.1", "2001:db8::1"])?;
        other.default_routes(&["10.0.0.1", "fd00:a::1"])?;
        Self::serving(topology, client, node, other)
    }

    fn serving(topology: Topology, client: Host, node: Host, other: Host) -> Result<Self> {
        let server = other.http_server(&["10.0.0.2:8080", "[fd00:a::2]:8080"], "other")?;
        Ok(Self { client, node, other, _server: server, topology })
    }

    fn agent(&self, more: &[&str]) -> Result<Agent> {
        self.agent_with(web().there(&["10.0.0.2", "fd00:a::2"]), more)
    }

    fn agent_with(&self, web: Service, more: &[&str]) -> Result<Agent> {
        let file = self.topology.write_manifests(&manifests(&[web]))?;
        Agent::start(&self.node, &self.topology.warm_agent_pins(), &file, "ext0", more)
    }

    fn curl(&self, url: &str) -> Result<String> {
        Ok(self.client.curl(url)?.trim().to_owned())
    }
}

fn web() -> Service {
    Service::new("web", &["10.96.0.10", "fd00:10:96::a"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
        .tcp(80, 8080)
}

#[test]
fn the_first_connection_to_another_node_succeeds() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let _agent = network.agent(&["--device", "in0"])?;
    assert_eq!(network.curl(VIP)?, "other");
    assert_eq!(network.curl(VIP6)?, "other");
    Ok(())
}

#[test]
fn a_backend_on_another_node_sees_an_address_of_this_node() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let _agent = network.agent(&["--device", "in0"])?;
    assert_eq!(network.curl(&format!("{VIP}client"))?, "10.0.0.1");
    assert_eq!(network.curl(&format!("{VIP6}client"))?, "fd00:a::1");
    Ok(())
}

/// As the slices of Services without a selector, for example of `default/kubernetes`. An interface
/// gets the addresses of the second one while the agent runs.
#[test]
fn a_backend_at_an_address_of_the_node_gets_connections_if_no_slice_names_its_node() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let added = ["10.0.0.9", "fd00:a::9"];
    for (addresses, is_added) in [(["10.0.0.1", "fd00:a::1"], false), (added, true)] {
        let [v4, v6] = addresses;
        let agent = network.agent_with(web().somewhere(&addresses), &["--device", "in0"])?;
        if is_added {
            network.node.address("in0", "10.0.0.9/24")?;
            network.node.address("in0", "fd00:a::9/64")?;
        }
        let ends = [format!("{v4}:8080"), format!("[{v6}]:8080")];
        let _server = network.node.http_server(&ends.each_ref().map(String::as_str), "node")?;
        for (vip, client) in [(VIP, "192.0.2.2"), (VIP6, "2001:db8::2")] {
            let is_served = || network.curl(&format!("{vip}client")).is_ok_and(|it| it == client);
            wait_until("the Service works", SOON, is_served)
                .with_context(|| agent.get(&["counters"]).unwrap_or_default())?;
        }
        agent.kill();
    }
    Ok(())
}

#[test]
fn many_connections_to_another_node_succeed() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let agent = network.agent(&["--device", "in0"])?;
    for number in 0..100 {
        let answer = network.curl(VIP)?;
        assert_eq!(answer, "other", "connection {number}: {}", agent.get(&["counters"])?);
    }
    Ok(())
}

#[test]
fn a_large_response_from_another_node_arrives_completely() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let _agent = network.agent(&["--device", "in0"])?;
    for url in [VIP, VIP6] {
        assert_eq!(network.client.download(&format!("{url}large"))?, LARGE);
    }
    Ok(())
}

#[test]
fn packets_can_leave_by_the_device_on_which_they_arrived() -> Result<()> {
    let network = TwoNodes::on_one_device()?;
    let agent = network.agent(&[])?;
    for number in 0..20 {
        let answers = [network.curl(VIP)?, network.curl(VIP6)?];
        assert_eq!(answers, ["other", "other"], "{number}: {}", agent.get(&["counters"])?);
    }
    // An address of the node, not of the client.
    assert_eq!(network.curl(&format!("{VIP}client"))?, "192.0.2.1");
    Ok(())
}

#[test]
fn a_connection_follows_the_changed_mac_address_of_its_backend() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let _agent = network.agent(&["--device", "in0"])?;
    let mut stream = network.client.tcp_connect("203.0.113.10:80")?;
    let mut ask = move || -> Result<usize> {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
        Ok(stream.read(&mut [0; 1000])?)
    };
    assert!(ask()? > 0);
    // The other node gets another MAC address, and the node learns it, as by gratuitous ARP.
    network.other.ip("link set eth0 address 02:00:00:00:0a:02")?;
    network.node.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:0a:02 dev in0 nud reachable")?;
    assert!(ask()? > 0);
    Ok(())
}

#[test]
fn trace_warns_if_the_reply_would_arrive_where_no_program_is() -> Result<()> {
    let network = TwoNodes::on_two_devices()?;
    let pins = network.topology.warm_agent_pins();
    let trace = || -> Result<String> {
        let (program, packet) = (program()?, "--device ext0 tcp 192.0.2.2:40000 203.0.113.10:80");
        let command = [program.as_os_str(), "--pin-path".as_ref(), pins.as_os_str()];
        let words = ["trace"].into_iter().chain(packet.split(' ')).map(OsStr::new);
        network.node.run(command.into_iter().chain(words))
    };
    const WARNING: &str = "the reply will arrive at in0, where no program is attached";
    let agent = network.agent(&[])?;
    // The next hop has to be known.
    network.node.run(["ping", "-c", "1", "10.0.0.2"])?;
    assert!(trace()?.contains(WARNING), "{}", trace()?);
    let _ = agent.terminate()?;
    let _agent = network.agent(&["--device", "in0"])?;
    assert!(!trace()?.contains(WARNING), "{}", trace()?);
    Ok(())
}
