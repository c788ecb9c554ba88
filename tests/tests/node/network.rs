//! What the agent does about changes of a machine's network.

use std::fs;

use anyhow::{Context, Result};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{DEVICE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

/// A Service with NodePort 30080, and a ClusterIP for pods.
fn web() -> Service {
    let web = Service::new("web", &["10.96.0.10"]).tcp(80, 8080).node_port(30080);
    web.here(&["10.244.1.10"])
}

/// Starts the agent on [`web`].
fn agent(network: &OneNode, device: &str, more: &[&str]) -> Result<Agent> {
    let file = network.write_manifests(&manifests(&[web()]))?;
    Agent::start(&network.node, &network.pin_path(), &file, device, more)
}

#[test]
fn a_node_port_opens_on_an_added_address_and_closes_on_a_removed_one() -> Result<()> {
    let network = OneNode::warm(1)?;
    let _agent = agent(&network, DEVICE, &[])?;
    let url = "http://192.0.2.77:30080/";
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    assert!(network.curl(url).is_err());
    network.node.address(DEVICE, "192.0.2.77/24")?;
    wait_until("the NodePort is open on the new address", SOON, || {
        network.curl(url).is_ok_and(|answer| answer == "pod-0\n")
    })?;
    // The address moves to loopback, so the client still reaches the node, which refuses.
    network.node.ip(&format!("address del 192.0.2.77/24 dev {DEVICE}"))?;
    network.node.address("lo", "192.0.2.77/32")?;
    wait_until("the NodePort is closed on that address", SOON, || network.curl(url).is_err())?;
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    Ok(())
}

#[test]
fn node_ports_are_open_only_on_configured_addresses() -> Result<()> {
    let network = OneNode::warm(1)?;
    network.node.address(DEVICE, "192.0.2.77/24")?;
    let addresses = ["--nodeport-addresses", "192.0.2.64/26,2001:db8::/64"];
    let _agent = agent(&network, DEVICE, &addresses)?;
    assert_eq!(network.curl("http://192.0.2.77:30080/")?, "pod-0\n");
    assert!(network.curl("http://192.0.2.1:30080/").is_err());
    Ok(())
}

#[test]
fn an_added_device_is_served_also_when_it_is_added_again() -> Result<()> {
    let network = OneNode::warm(1)?;
    let agent = agent(&network, "ext*", &[])?;
    let other = network.topology.host("other")?;
    // VLAN interfaces have names with dots, which the BPF file system does not allow.
    let dotted = "ext1.7";
    for round in 1..=2 {
        network.topology.link(
            other.port("eth0").address("198.51.100.2/24").wire(),
            network.node.port(dotted).address("198.51.100.1/24"),
        )?;
        other.ip("route replace default via 198.51.100.1")?;
        let curl = ["curl", "-sf", "--max-time", "2", "http://198.51.100.1:30080/"];
        wait_until("the new device is served", SOON, || {
            other.run(curl).is_ok_and(|answer| answer == "pod-0\n")
        })?;
        network.node.ip(&format!("link del {dotted}"))?;
        wait_until("the device is detached", SOON, || {
            agent.log().matches("detached from interface device=ext1.7").count() == round
        })?;
        assert_eq!(
            agent.log().matches("attached to interface device=ext1.7").count(),
            round,
            "{}",
            agent.log()
        );
    }
    let links = fs::read_dir(network.pin_path().join("links"))?;
    let names: Vec<_> = links.map(|link| Ok(link?.file_name())).collect::<Result<_>>()?;
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("ext1")), "{names:?}");
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    Ok(())
}

#[test]
fn a_device_that_was_replaced_while_no_agent_ran_is_served() -> Result<()> {
    let network = OneNode::warm(1)?;
    let first = agent(&network, DEVICE, &[])?;
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    first.kill();
    network.node.ip(&format!("link del {DEVICE}"))?;
    network.topology.link(
        network.client.port("eth0").address("192.0.2.2/24").wire(),
        network.node.port(DEVICE).address("192.0.2.1/24"),
    )?;
    let second = agent(&network, DEVICE, &[])?;
    assert!(second.log().contains("attached to interface device=ext0"), "{}", second.log());
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    Ok(())
}

#[test]
fn a_pod_that_is_added_later_reaches_services() -> Result<()> {
    let network = OneNode::warm(1)?;
    let agent = agent(&network, DEVICE, &["--workload-device", "pod-*"])?;
    let late = network.node.pod("pod-late", &["10.244.1.99"])?;
    wait_until("the pod is served", SOON, || {
        agent.log().contains("attached to interface device=pod-late")
    })?;
    let curl = ["curl", "-sf", "--max-time", "60", "http://10.96.0.10/"];
    assert_eq!(late.run(curl)?, "pod-0\n");
    network.node.ip("link del pod-late")?;
    wait_until("the pod's device is detached", SOON, || {
        agent.log().contains("detached from interface device=pod-late")
    })?;
    Ok(())
}

#[test]
fn auto_serves_the_device_of_the_default_route() -> Result<()> {
    let network = OneNode::warm(1)?;
    network.node.default_route("192.0.2.2")?;
    let agent = agent(&network, "auto", &[])?;
    assert!(
        agent.log().contains(&format!("attached to interface device={DEVICE}")),
        "{}",
        agent.log()
    );
    assert_eq!(network.curl("http://192.0.2.1:30080/")?, "pod-0\n");
    // The route flaps, as when a DHCP lease is renewed. The device stays attached. The address is
    // changed after the route, so once it is programmed, the agent has seen both changes.
    network.node.ip("route del default")?;
    network.node.address(DEVICE, "192.0.2.77/24")?;
    wait_until("the new address is programmed", SOON, || {
        network.curl("http://192.0.2.77:30080/").is_ok_and(|answer| answer == "pod-0\n")
    })?;
    assert!(!agent.log().contains("detached from interface"), "{}", agent.log());
    Ok(())
}

#[test]
fn a_bridge_is_served_and_its_port_is_refused_with_the_reason() -> Result<()> {
    let network = OneNode::warm(1)?;
    network.node.bridge("br0")?;
    network.node.ip(&format!("address flush dev {DEVICE}"))?;
    network.node.ip(&format!("link set {DEVICE} master br0"))?;
    network.node.address("br0", "192.0.2.1/24")?;
    let refused = agent(&network, DEVICE, &[]).err().context("no error for a port")?.to_string();
    assert!(refused.contains("port of the bridge br0"), "{refused}");

    let agent = agent(&network, "br0", &["--xdp-mode", "auto"])?;
    assert!(
        agent.log().contains("does not support XDP; using tc, which is slower device=br0"),
        "{}",
        agent.log()
    );
    wait_until("the bridge forwards", SOON, || network.curl("http://192.0.2.1:30080/").is_ok())?;
    Ok(())
}
