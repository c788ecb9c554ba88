//! Pods as clients of Services, through programs on the host side of their veths.

use std::io::{self, ErrorKind};

use anyhow::Result;
use tests::agent::Agent;
use tests::one_node::{NODE, OneNode};

/// A Service with one endpoint, and one without endpoints.
const MANIFESTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: first}
spec: {clusterIPs: [10.96.0.1, 'fd00:10:96::1'], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: first-4, labels: {kubernetes.io/service-name: first}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: node}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: first-6, labels: {kubernetes.io/service-name: first}}
addressType: IPv6
ports: [{port: 8080}]
endpoints: [{addresses: ['fd00:10:244:1::10'], nodeName: node}]
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {clusterIPs: [10.96.0.9, 'fd00:10:96::9'], ports: [{port: 80}]}
";

fn start() -> Result<(OneNode, Agent)> {
    let network = OneNode::with_pods(2)?;
    let file = network.topology.directory().join("manifests.yaml");
    std::fs::write(&file, MANIFESTS)?;
    let more = ["--workload-device", "pod-*"];
    let agent = Agent::start(&network.node, &network.pin_path(), &file, "ext0", &more)?;
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
