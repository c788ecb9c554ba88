//! The agent between real clients and real servers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result};
use tests::manifests::{Service, manifests};
use tests::programs::agent::{Agent, SMALL_MAPS};
use tests::worlds::one_node::{CLIENT, DEVICE, OneNode};
use tests::worlds::topology::{LARGE, SOON, wait_until};

const VIP: &str = "http://203.0.113.10/";

/// A Service `web` with a ClusterIP, a NodePort and a load balancer's address, and these
/// endpoints.
fn web(endpoints: &[&str]) -> String {
    manifests(&[web_service(endpoints)])
}

fn web_service(endpoints: &[&str]) -> Service {
    let web = Service::new("web", &["10.96.0.10"]).load_balancer(&["203.0.113.10"]);
    web.tcp(80, 8080).node_port(30080).here(endpoints)
}

fn answers(network: &OneNode, url: &str, count: usize) -> Result<Vec<String>> {
    (0..count).map(|_| network.curl(url).map(|answer| answer.trim().to_owned())).collect()
}

#[test]
fn every_kind_of_frontend_reaches_all_backends() -> Result<()> {
    let network = OneNode::warm(2)?;
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
    let text = fs::read_to_string(format!("{manifests}/web.yaml"))?;
    // Two pods here, three in the manifest.
    let text = text
        .replace("  - addresses: [10.244.1.12]\n    nodeName: node\n", "")
        .replace("  - addresses: [\"fd00:10:244:1::12\"]\n    nodeName: node\n", "");
    let (_agent, _) = network.agent_on(&text)?;
    for url in [
        VIP,
        "http://10.96.0.10/",
        "http://192.0.2.1:30080/",
        "http://[2001:db8:113::10]/",
        "http://[fd00:10:96::a]/",
        "http://[2001:db8::1]:30080/",
    ] {
        let answers = answers(&network, url, 24).context(url)?;
        for pod in ["pod-0", "pod-1"] {
            // 24 fair draws miss one of two about once in eight million runs.
            assert!(answers.iter().any(|answer| answer == pod), "{url}: no response from {pod}");
        }
    }
    Ok(())
}

#[test]
fn a_backend_sees_the_clients_own_address() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, _) = network.agent_on(&web(&["10.244.1.10"]))?;
    assert_eq!(network.curl("http://203.0.113.10/client")?.trim(), CLIENT);
    Ok(())
}

#[test]
fn a_large_response_arrives_completely() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (agent, _) = network.agent_on(&web(&["10.244.1.10"]))?;
    assert_eq!(network.client.download("http://203.0.113.10/large")?, LARGE);
    assert!(agent.get(&["flows"])?.contains("203.0.113.10:80"));
    Ok(())
}

#[test]
fn new_connections_follow_the_endpoints_in_a_changed_file() -> Result<()> {
    let network = OneNode::warm(2)?;
    let (_agent, file) = network.agent_on(&web(&["10.244.1.10"]))?;
    assert!(answers(&network, VIP, 10)?.iter().all(|answer| answer == "pod-0"));

    fs::write(&file, web(&["10.244.1.11"]))?;
    network.wait_for_pod(VIP, "pod-1")?;
    assert!(answers(&network, VIP, 10)?.iter().all(|answer| answer == "pod-1"));

    // Replaced by a rename, as configuration management does.
    let new = file.with_extension("new");
    fs::write(&new, web(&["10.244.1.10"]))?;
    fs::rename(&new, &file)?;
    network.wait_for_pod(VIP, "pod-0")
}

#[test]
fn a_deleted_service_is_removed_from_the_maps() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (agent, file) = network.agent_on(&web(&["10.244.1.10"]))?;
    assert!(network.curl(VIP).is_ok());
    fs::write(&file, "# nothing\n")?;
    wait_until("no frontend is left", SOON, || {
        agent.get(&["frontends", "-o", "json"]).is_ok_and(|frontends| frontends.trim() == "[]")
    })?;
    assert!(network.curl(VIP).is_err());
    Ok(())
}

#[test]
fn an_established_connection_survives_a_new_endpoint_and_a_killed_agent() -> Result<()> {
    let network = OneNode::warm(2)?;
    let (agent, file) = network.agent_on(&web(&["10.244.1.10"]))?;
    let mut connection = network.client.tcp_connect("203.0.113.10:80")?;
    assert_eq!(ask(&mut connection)?, "pod-0");

    fs::write(&file, web(&["10.244.1.10", "10.244.1.11"]))?;
    network.wait_for_pod(VIP, "pod-1")?;
    assert_eq!(ask(&mut connection)?, "pod-0");

    agent.kill();
    assert_eq!(ask(&mut connection)?, "pod-0", "the kernel keeps forwarding without an agent");
    assert!(network.curl(VIP).is_ok(), "new connections work without an agent");

    let agent = network.agent(&file)?;
    assert!(agent.log().contains("adopting"), "{}", agent.log());
    assert_eq!(ask(&mut connection)?, "pod-0", "the next agent keeps the flows");
    assert!(network.curl(VIP).is_ok());
    Ok(())
}

#[test]
fn a_terminating_pod_keeps_its_connections_until_it_is_gone() -> Result<()> {
    let network = OneNode::warm(2)?;
    let (_agent, file) = network.agent_on(&web(&["10.244.1.10"]))?;
    let mut connection = network.client.tcp_connect("203.0.113.10:80")?;
    assert_eq!(ask(&mut connection)?, "pod-0");

    let ending = web_service(&["10.244.1.11"]).terminating("10.244.1.10");
    fs::write(&file, manifests(&[ending]))?;
    network.wait_for_pod(VIP, "pod-1")?;
    assert_eq!(ask(&mut connection)?, "pod-0");
    assert!(answers(&network, VIP, 10)?.iter().all(|answer| answer == "pod-1"));

    fs::write(&file, web(&["10.244.1.11"]))?;
    wait_until("the connection is reset", SOON, || ask(&mut connection).is_err())?;
    assert!(answers(&network, VIP, 10)?.iter().all(|answer| answer == "pod-1"));
    Ok(())
}

#[test]
fn a_port_that_no_service_has_is_refused_at_a_cluster_address() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, _) = network.agent_on(&web(&["10.244.1.10"]))?;
    let refused = network.client.tcp_connect("10.96.0.10:81").expect_err("no such port");
    let kind = refused.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionRefused), "{refused:#}");
    Ok(())
}

/// Sends a request over an open connection, and returns the name of the pod that responds.
fn ask(connection: &mut TcpStream) -> Result<String> {
    connection.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.ends_with(b"\n")
        || !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n")
        || answer.ends_with(b"\r\n\r\n")
    {
        let read = connection.read(&mut buffer).context("no response")?;
        anyhow::ensure!(read > 0, "the connection was closed");
        answer.extend_from_slice(&buffer[..read]);
    }
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn traffic_without_a_service_reaches_the_node_unmodified() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, _) = network.agent_on(&web(&["10.244.1.10"]))?;
    network.client.run(["ping", "-c", "1", "-W", "60", "192.0.2.1"])?;
    let _server = network.node.http_server(&["192.0.2.1:80"], "node")?;
    assert_eq!(network.curl("http://192.0.2.1/")?, "node\n");
    // A pod under its own address, without a Service.
    assert_eq!(network.curl("http://10.244.1.10:8080/")?, "pod-0\n");
    Ok(())
}

#[test]
fn bpftool_shows_the_fields_of_maps_by_name() -> Result<()> {
    let network = OneNode::with_pods(1)?;
    let file = network.topology.directory().join("web.yaml");
    fs::write(&file, web(&["10.244.1.10"]))?;
    let _agent = Agent::start(&network.node, &network.pin_path(), &file, DEVICE, &SMALL_MAPS)?;
    assert!(network.curl(VIP).is_ok());
    let map = |name: &str| {
        let path = network.pin_path().join(name);
        network.node.run(["bpftool", "-j", "map", "dump", "pinned", &path.to_string_lossy()])
    };
    for (name, fields) in [
        ("FRONTENDS4", &["address", "port", "protocol", "service_port", "cluster_pool"][..]),
        ("BACKENDS4", &["address", "port", "generation"]),
        ("FLOWS4", &["client", "frontend", "backend", "client_port", "seen"]),
        ("SERVICE_TRAFFIC", &["forward_packets", "reverse_bytes"]),
        ("IDENTITY", &["schema", "flow_seed"]),
    ] {
        let dump = map(name)?;
        for field in fields {
            assert!(dump.contains(&format!("\"{field}\"")), "{name} does not name {field}");
        }
    }
    Ok(())
}
