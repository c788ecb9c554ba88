//! Pods as clients of Services, through programs on the host side of their veths.

use std::io::{self, ErrorKind};

use anyhow::Result;
use tests::agent::Agent;
use tests::manifests::{Service, manifests};
use tests::one_node::{NODE, OneNode};

/// A Service with one endpoint, and one without endpoints.
fn services() -> [Service; 2] {
    let first = Service::new("first", &["10.96.0.1", "fd00:10:96::1"])
        .tcp(80, 8080)
        .here(&["10.244.1.10", "fd00:10:244:1::10"]);
    [first, Service::new("nobody", &["10.96.0.9", "fd00:10:96::9"]).tcp(80, 8080)]
}

fn start() -> Result<(OneNode, Agent)> {
    let network = OneNode::warm(2)?;
    let more = ["--workload-device", "pod-*"];
    let agent = network.agent_with(&manifests(&services()), &more)?;
    Ok((network, agent))
}

fn curl(network: &OneNode, pod: usize, url: &str) -> Result<String> {
    let words =
        ["curl", "--silent", "--show-error", "--fail", "--max-time", "60", "--globoff", url];
    Ok(network.pods[pod].host.run(words)?.trim().to_owned())
}

#[test]
fn a_pod_reaches_another_through_a_service_with_its_own_address() -> Result<()> {
    let (network, _agent) = start()?;
    for url in ["http://10.96.0.1/", "http://[fd00:10:96::1]/"] {
        assert_eq!(curl(&network, 1, url)?, "pod-0");
    }
    assert_eq!(curl(&network, 1, "http://10.96.0.1/client")?, "10.244.1.11");
    Ok(())
}

#[test]
fn a_pod_reaches_itself_through_a_service() -> Result<()> {
    let (network, agent) = start()?;
    for url in ["http://10.96.0.1/", "http://[fd00:10:96::1]/"] {
        let answer = curl(&network, 0, url);
        assert_eq!(answer?, "pod-0", "{url}: {}", agent.get(&["counters"])?);
    }
    // SNAT is needed: hosts drop packets from outside that have their own address as the source.
    assert_eq!(curl(&network, 0, "http://10.96.0.1/client")?, NODE);
    Ok(())
}

#[test]
fn without_endpoints_clients_are_refused_at_once() -> Result<()> {
    let (network, agent) = start()?;
    for frontend in ["10.96.0.9:80", "[fd00:10:96::9]:80"] {
        for host in [&network.client, &network.pods[0].host] {
            let before = agent.counted("no_backend")?;
            let error = host.tcp_connect(frontend).expect_err("it has no endpoint");
            let what = format!("{}, {frontend}: {error:#}", host.name());
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            assert_eq!(kind, Some(ErrorKind::ConnectionRefused), "{what}");
            // Without an immediate reply the client would have sent another SYN.
            assert_eq!(agent.counted("no_backend")?, before + 1, "{what}");
        }
    }
    Ok(())
}
