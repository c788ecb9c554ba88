//! SNAT does not use ports that the node uses itself: reserved by sysctl, by sockets, by NodePorts, or lent to Services.

use anyhow::{Context, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::layout::map;
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{SOON, wait_until};

/// A Service with this NodePort, and its backend on another node.
fn web(node_port: u16) -> String {
    let web = Service::new("web", &["10.96.0.10"]).tcp(80, 8080).node_port(node_port);
    manifests(&[web.there(&["10.0.0.2"])])
}

/// The range of SNAT ports: 257, a prime number.
const RANGE: &str = "20000-20256";

struct Case(OneNode);

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::warm(0)?;
        network.write_manifests(&web(30080))?;
        Ok(Self(network))
    }

    /// Starts the agent with the range of SNAT ports.
    fn start(&self, more: &[&str]) -> Result<Agent> {
        self.0.start_agent(&[&["--snat-ports", RANGE], more].concat())
    }

    fn is_reserved(&self, port: u16) -> Result<bool> {
        let data = MapData::from_pin(self.0.pin_path().join(map::RESERVED_PORTS))?;
        let words: Array<_, u64> = Array::try_from(Map::Array(data))?;
        Ok(words.get(&u32::from(port / 64), 0)? & 1 << (port % 64) != 0)
    }

    /// Waits until the port is reserved, or free. The agent reads the ports every ten seconds.
    fn becomes_reserved(&self, port: u16, reserved: bool) -> Result<()> {
        let what = format!("port {port} is reserved: {reserved}");
        wait_until(&what, SOON, || self.is_reserved(port).is_ok_and(|now| now == reserved))
    }
}

#[test]
fn ports_are_reserved_while_the_node_uses_them() -> Result<()> {
    let case = Case::new()?;
    let node = &case.0.node;
    node.sysctl(&["net.ipv4.ip_local_reserved_ports=20100-20101"])?;
    let listener = node.tcp_echo("0.0.0.0:20001", "tcp")?;
    let _udp = node.udp_echo("0.0.0.0:20002", "udp")?;
    let _agent = case.start(&[])?;
    for port in [20001, 20002, 20100, 20101, 30080, 32768, 60999] {
        assert!(case.is_reserved(port)?, "{port}");
    }
    for port in [1024, 20000, 20003, 20102, 30081, 32767, 61000] {
        assert!(!case.is_reserved(port)?, "{port}");
    }

    case.0.write_manifests(&web(30081))?;
    case.becomes_reserved(30081, true)?;
    case.becomes_reserved(30080, false)?;
    drop(listener);
    let _another = node.tcp_echo("[::]:20003", "tcp6")?;
    node.sysctl(&["net.ipv4.ip_local_reserved_ports="])?;
    case.becomes_reserved(20003, true)?;
    case.becomes_reserved(20100, false)?;
    case.becomes_reserved(20001, false)
}

#[test]
fn ports_that_the_node_lends_are_reserved() -> Result<()> {
    let case = Case::new()?;
    case.0.write_manifests(&super::lent_ports::manifests("20050"))?;
    let _agent = case.start(&[])?;
    case.becomes_reserved(20050, true)?;
    case.0.write_manifests(&super::lent_ports::manifests("20051"))?;
    case.becomes_reserved(20051, true)?;
    case.becomes_reserved(20050, false)
}

#[test]
fn node_ports_stay_reserved_while_a_restarted_agent_waits_for_the_api_server() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    let _next = case.0.agent_that_waits()?;
    assert!(case.is_reserved(30080)?);
    Ok(())
}

/// Sixteen of 257 ports are left. No connection may get another one.
#[test]
fn connections_get_only_ports_that_are_not_reserved() -> Result<()> {
    let case = Case::new()?;
    let other = case.0.other_node()?;
    let server = other.http_server(&["10.0.0.2:8080"], "other")?;
    case.0.node.sysctl(&["net.ipv4.ip_local_reserved_ports=20000-20199,20216-20256"])?;
    // Replies arrive on the device to the other node.
    let agent = case.start(&["--device", "in0"])?;
    assert!(agent.log().contains("too few ports for SNAT; "), "{}", agent.log());
    for _ in 0..2 {
        assert_eq!(case.0.curl("http://192.0.2.1:30080/")?.trim(), "other");
    }
    let flows = agent.get(&["flows", "-o", "json"])?;
    let flows: Vec<serde_json::Value> = serde_json::from_str(&flows)?;
    let ports = flows.iter().map(|flow| {
        let snat = flow["snat"].as_str().context("a flow without SNAT")?;
        Ok(snat.rsplit(':').next().unwrap_or_default().parse()?)
    });
    let ports: Vec<u16> = ports.collect::<Result<_>>()?;
    assert!(
        !ports.is_empty() && ports.iter().all(|port| (20200..=20215).contains(port)),
        "{flows:?}"
    );
    drop(server);
    Ok(())
}
