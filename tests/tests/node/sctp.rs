//! SCTP Services: with the kernel's own stack at both ends where it has one, otherwise from processes of the node, which
//! have no sockets that could be translated, by handmade packets.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use lb_common::header::Sctp;
use tests::manifests::{Service, here, manifests, there};
use tests::packets::sctp;
use tests::programs::agent::Agent;
use tests::worlds::one_node::{CLIENT, OneNode};
use tests::worlds::topology::{Host, has_sctp};

const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;

/// Address of a Service, and its backend.
const SERVICES: [(&str, &str); 6] = [
    ("10.96.0.10:3868", "10.244.1.10:8080"),
    ("[fd00:10:96::a]:3868", "[fd00:10:244:1::10]:8080"),
    ("10.96.0.11:3868", "10.0.0.2:8080"),
    ("[fd00:10:96::b]:3868", "[fd00:a::2]:8080"),
    ("10.96.0.12:3868", "192.0.2.1:8080"),
    ("[fd00:10:96::c]:3868", "[2001:db8::1]:8080"),
];

/// Client and node, two pods, another node, and a Service for each place of a backend: the pod, the other node, and the
/// node itself.
struct Case {
    agent: Agent,
    other: Host,
    network: OneNode,
}

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::warm(2)?;
        let other = network.other_node()?;
        // The way to addresses of Services.
        network.node.default_routes(&[CLIENT, "2001:db8::2"])?;
        let own = Service::new("own", &["10.96.0.12", "fd00:10:96::c"])
            .here(&["192.0.2.1", "2001:db8::1"]);
        let services = [here(), there(), own].map(|service| service.sctp(3868, 8080));
        let more = ["--device", "in0", "--workload-device", "pod-*"];
        let agent = network.agent_with(&manifests(&services), &more)?;
        Ok(Self { agent, other, network })
    }

    /// The host of each backend.
    fn host(&self, backend: &str) -> &Host {
        match backend {
            "10.244.1.10:8080" | "[fd00:10:244:1::10]:8080" => &self.network.pods[0].host,
            "10.0.0.2:8080" | "[fd00:a::2]:8080" => &self.other,
            _ => &self.network.node,
        }
    }
}

/// Without sockets: packets from and to the node's stack, as those of sockets.
#[test]
fn packets_of_processes_reach_services_and_their_replies_the_processes() -> Result<()> {
    if has_sctp() {
        println!("skipped, this kernel would reply to the packets");
        return Ok(());
    }
    let case = Case::new()?;
    for (service, backend) in SERVICES {
        exchange(&case, service, backend).with_context(|| {
            format!("{service} by {backend}\n{}", case.agent.get(&["counters"]).unwrap_or_default())
        })?;
    }
    let flows = case.agent.get(&["flows"])?;
    let established = flows.lines().filter(|line| line.contains("established")).count();
    ensure!(established == SERVICES.len(), "{flows}");
    Ok(())
}

fn exchange(case: &Case, service: &str, backend: &str) -> Result<()> {
    let (node, host) = (&case.network.node, case.host(backend));
    let v6 = service.starts_with('[');
    let process = if v6 { "[2001:db8::1]:40000" } else { "192.0.2.1:40000" };
    let (at_node, at_host) = (node.sctp_receiver()?, host.sctp_receiver()?);
    // On the node itself, both see the packets of both.
    let of_both = host.name() == node.name();
    let request = sctp(process, service).verification_tag(7);
    let mut client = None;
    for (request_chunk, reply_chunk) in [(Sctp::INIT, Sctp::INIT_ACK), (COOKIE_ECHO, COOKIE_ACK)] {
        node.raw_socket()?.send(&request.chunk(request_chunk))?;
        let request = at_host.receive(v6).context("the request")?;
        ensure!(request.to_port == 8080 && request.chunk == request_chunk, "{request:?}");
        ensure!(request.checksum_is_right, "{request:?}");
        ensure!(client.is_none_or(|client| client == request.from), "{client:?} {request:?}");
        client = Some(request.from);
        if of_both {
            at_node.receive(v6)?;
        }
        let reply = sctp(backend, request.from.to_string().as_str()).verification_tag(7);
        host.raw_socket()?.send(&reply.chunk(reply_chunk))?;
        let reply = at_node.receive(v6).context("the reply")?;
        ensure!(reply.from == service.parse::<SocketAddr>()?, "{reply:?}");
        ensure!(reply.to_port == 40000 && reply.chunk == reply_chunk, "{reply:?}");
        ensure!(reply.checksum_is_right, "{reply:?}");
        if of_both {
            at_host.receive(v6)?;
        }
    }
    Ok(())
}

/// Both ends check what they get: checksums, tags, and the chunks' order.
#[test]
fn stacks_reach_services_and_end_their_associations() -> Result<()> {
    if !has_sctp() {
        println!("skipped, this kernel has no SCTP");
        return Ok(());
    }
    let case = Case::new()?;
    let servers: Result<Vec<_>> = SERVICES
        .iter()
        .map(|(_, backend)| case.host(backend).sctp_echo(backend, backend))
        .collect();
    let _servers = servers?;
    let pod = &case.network.pods[1].host;
    let (from_node, from_pod) = (
        ["192.0.2.1:40000", "[2001:db8::1]:40000"],
        ["10.244.1.11:40000", "[fd00:10:244:1::11]:40000"],
    );
    for (number, (service, backend)) in SERVICES.iter().enumerate() {
        for (host, from) in [(&case.network.node, from_node), (pod, from_pod)] {
            talk(host, from[number % 2], service, backend)
                .with_context(|| format!("{} to {service} by {backend}", host.name()))?;
        }
    }
    let outside = ["203.0.113.10:3868", "[2001:db8:113::10]:3868"];
    for ((from, service), (_, backend)) in
        ["192.0.2.2:40000", "[2001:db8::2]:40000"].into_iter().zip(outside).zip(&SERVICES)
    {
        talk(&case.network.client, from, service, backend)
            .with_context(|| format!("from outside to {service}"))?;
    }
    Ok(())
}

/// Talks to a Service by two associations with the same ports, one after the other.
fn talk(host: &Host, from: &str, service: &str, backend: &str) -> Result<()> {
    let first = host.sctp_connect(from, service)?;
    let (name, _) = first.exchange("who").context("the first association")?;
    ensure!(name == backend, "{name} answers");
    // In many packets, and in one each.
    let long = "x".repeat(20_000);
    for line in [long.as_str(), "again"] {
        first.exchange(line).with_context(|| format!("{} octets", line.len()))?;
    }
    first.abort()?;
    let second = host.sctp_connect(from, service).context("after an ABORT")?;
    second.exchange("anew").context("the second association")?;
    Ok(())
}
