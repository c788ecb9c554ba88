//! Addresses that Millrace assigned behave like those of a host, to a client behind a router.

use std::io::{Error, ErrorKind};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::DEVICE;
use tests::worlds::topology::{Host, SOON, Topology, wait_until};

/// Routed to the node, which has no interface with them. In URLs.
const ADDRESSES: [&str; 2] = ["203.0.113.10", "[2001:db8:113::10]"];

/// Whether a host says that it has no such port.
fn is_refused<T>(result: Result<T>) -> Result<bool> {
    let Err(error) = result else { return Ok(false) };
    let kind = error.downcast_ref::<Error>().map(Error::kind);
    ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}");
    Ok(true)
}

/// Sends a datagram, and waits for what comes back.
fn ask(client: &Host, to: &str) -> Result<usize> {
    let socket = client.udp_socket(if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.connect(to)?;
    socket.send(b"question")?;
    Ok(socket.recv(&mut [0; 16])?)
}

#[test]
fn an_assigned_address_behaves_like_that_of_a_host() -> Result<()> {
    let topology = Topology::new("assigned")?;
    let client = topology.host("client")?;
    let (router, node) = (topology.router("router")?, topology.router("node")?);
    topology.link(
        client.port("eth0").addresses(&["10.0.0.2/24", "fd00:a::2/64"]).wire(),
        router.port("lan").addresses(&["10.0.0.1/24", "fd00:a::1/64"]),
    )?;
    topology.link(
        router.port("rack").addresses(&["192.0.2.2/24", "2001:db8::2/64"]).wire(),
        node.port(DEVICE).addresses(&["192.0.2.1/24", "2001:db8::1/64"]),
    )?;
    client.default_routes(&["10.0.0.1", "fd00:a::1"])?;
    node.default_routes(&["192.0.2.2", "2001:db8::2"])?;
    router.route("203.0.113.0/24", "192.0.2.1")?;
    router.route("2001:db8:113::/64", "2001:db8::1")?;
    let pod = node.pod("pod-0", &["10.244.1.10", "fd00:10:244:1::10"])?;
    let _server = pod.http_server(&["10.244.1.10:8080", "[fd00:10:244:1::10]:8080"], "pod-0")?;
    let service = Service::new("web", &["10.96.0.10", "fd00:10:96::a"])
        .with("type", json!("LoadBalancer"))
        .with("ipFamilies", json!(["IPv4", "IPv6"]))
        .with("ipFamilyPolicy", json!("RequireDualStack"))
        .tcp(80, 8080)
        .here(&["10.244.1.10", "fd00:10:244:1::10"]);
    let file = topology.write_manifests(&manifests(&[service]))?;

    for more in [[].as_slice(), &["--xdp-mode", "off"]] {
        let pool = ["--load-balancer-addresses", "203.0.113.10,2001:db8:113::10"];
        let arguments = [&pool, more].concat();
        let agent = Agent::start(&node, &topology.warm_agent_pins(), &file, DEVICE, &arguments)?;
        for address in ADDRESSES {
            let url = format!("http://{address}/");
            let is_served = || client.curl(&url).is_ok_and(|page| page.trim() == "pod-0");
            wait_until(&format!("{url} is served"), SOON, is_served)?;
            let context = || format!("{more:?} {address}\n{}", agent.log());
            let host = address.trim_matches(['[', ']']);
            client.run(["ping", "-q", "-c1", "-W10", host]).with_context(context)?;
            let unknown = format!("{address}:81");
            ensure!(is_refused(client.tcp_connect(&unknown)).with_context(context)?, "TCP");
            ensure!(is_refused(ask(&client, &unknown)).with_context(context)?, "UDP");
            ensure!(is_served(), "{}", context());
        }
    }
    Ok(())
}
