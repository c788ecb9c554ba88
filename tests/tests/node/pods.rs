//! Pods as clients of Services, through programs on the host side of their veths.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use anyhow::Result;
use nix::sys::socket::sockopt::{Mark, OriginalDst};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, connect, getsockopt, setsockopt, socket,
};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::{NODE, OneNode};
use tests::worlds::topology::SOON;

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
    Ok(network.pods[pod].host.curl(url)?.trim().to_owned())
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

/// As istio does it: the pod's firewall redirects connections to a proxy in the pod, which routes by
/// their original destination. So that must still be the Service, and not one of its endpoints.
#[test]
fn a_proxy_in_a_pod_sees_the_service_as_the_destination() -> Result<()> {
    let (network, _agent) = start()?;
    let pod = &network.pods[1].host;
    pod.run([
        "nft",
        "add table ip sidecar; \
         add chain ip sidecar output { type nat hook output priority -100; }; \
         add rule ip sidecar output meta mark != 1 tcp dport 80 redirect to :15001",
    ])?;
    let listener = pod.enter(|| Ok(TcpListener::bind("127.0.0.1:15001")?))?;
    // The timeout is a socket option, which accept uses, too; std has it only for streams.
    TcpStream::from(OwnedFd::from(listener.try_clone()?)).set_read_timeout(Some(SOON))?;
    thread::scope(|scope| {
        let proxy = scope.spawn(|| pod.enter(|| forward_one_connection(&listener)));
        let page = curl(&network, 1, "http://10.96.0.1/client");
        let destination = proxy.join().expect("it returns its errors")?;
        assert_eq!(destination.to_string(), "10.96.0.1:80");
        assert_eq!(page?, "10.244.1.11");
        Ok(())
    })
}

/// Connects a client to where it wanted to go. Returns that destination.
fn forward_one_connection(listener: &TcpListener) -> Result<SocketAddrV4> {
    let (client, _) = listener.accept()?;
    let original = getsockopt(&client, OriginalDst)?;
    let address = Ipv4Addr::from(u32::from_be(original.sin_addr.s_addr));
    let destination = SocketAddrV4::new(address, u16::from_be(original.sin_port));
    let server = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
    // By its mark this connection is not redirected again.
    setsockopt(&server, Mark, &1)?;
    connect(server.as_raw_fd(), &SockaddrIn::from(destination))?;
    let server = TcpStream::from(server);
    thread::scope(|scope| {
        // Ends when curl closes its connection.
        scope.spawn(|| {
            let _ = io::copy(&mut &client, &mut &server);
            server.shutdown(std::net::Shutdown::Both)
        });
        let _ = io::copy(&mut &server, &mut &client);
    });
    Ok(destination)
}
