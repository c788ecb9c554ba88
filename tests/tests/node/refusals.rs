//! Endpoints that refuse connections: their clients reach others.

use std::io::{self, ErrorKind};

use anyhow::{Context, Result, ensure};
use tests::manifests::{Service, manifests};
use tests::worlds::one_node::OneNode;

/// Where only the first pod listens: the others' servers have another port.
const PORT: u16 = 9090;

/// Two endpoints of three refuse; and the only endpoint of another Service does.
fn services() -> [Service; 2] {
    let web = Service::new("web", &["10.96.0.20", "fd00:10:96::20"]).tcp(80, PORT).here(&[
        "10.244.1.10",
        "10.244.1.11",
        "fd00:10:244:1::10",
        "fd00:10:244:1::11",
    ]);
    let alone = Service::new("alone", &["10.96.0.21", "fd00:10:96::21"])
        .tcp(80, PORT)
        .here(&["10.244.1.11", "fd00:10:244:1::11"]);
    [web, alone]
}

#[test]
fn a_client_does_not_notice_an_endpoint_that_refuses() -> Result<()> {
    let network = OneNode::warm(2)?;
    let more = ["--workload-device", "pod-*"];
    let agent = network.agent_with(&manifests(&services()), &more)?;
    let first = &network.pods[0].host;
    let _servers = ["10.244.1.10", "[fd00:10:244:1::10]"]
        .map(|address| first.tcp_echo(&format!("{address}:{PORT}"), "first"));
    for frontend in ["10.96.0.20:80", "[fd00:10:96::20]:80"] {
        for host in [&network.client, &network.pods[1].host] {
            let before = agent.counted("moved")?;
            for number in 0..40 {
                host.tcp_connect(frontend)
                    .with_context(|| format!("{}, {frontend}, {number}", host.name()))?;
            }
            // All 40 by chance once in 10^12.
            ensure!(agent.counted("moved")? > before, "{}, {frontend}", host.name());
        }
    }
    for frontend in ["10.96.0.21:80", "[fd00:10:96::21]:80"] {
        let before = agent.counted("moved")?;
        let error = network.client.tcp_connect(frontend).expect_err("nothing listens");
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        ensure!(kind == Some(ErrorKind::ConnectionRefused), "{frontend}: {error:#}");
        ensure!(agent.counted("moved")? == before);
    }
    Ok(())
}
