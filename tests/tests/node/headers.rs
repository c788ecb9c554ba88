//! IP options and extension headers in packets from the kernel's own stack: both directions of
//! connections and datagrams.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use tests::manifests::{here, manifests, there};
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Host, SOON};

/// Makes a socket send options or extension headers.
fn carry(socket: &impl AsFd, to: SocketAddr) -> Result<()> {
    /// RFC 791 Record Route, with room for the addresses of two routers.
    const RECORD_ROUTE: [u8; 12] = [7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// A PadN option of six bytes, which receivers skip.
    const PADDING: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
    let options: &[(_, _, &[u8])] = match to {
        SocketAddr::V4(_) => &[(libc::IPPROTO_IP, libc::IP_OPTIONS, &RECORD_ROUTE)],
        SocketAddr::V6(_) => &[
            (libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS, &PADDING),
            (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &PADDING),
        ],
    };
    for (level, name, value) in options {
        // SAFETY: the kernel reads `length` bytes of `value`, which outlives the call.
        let result = unsafe {
            let (bytes, length) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
            libc::setsockopt(socket.as_fd().as_raw_fd(), *level, *name, bytes, length)
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error()).context("setsockopt failed");
        }
    }
    Ok(())
}

/// A client, the frontend that it connects to, and the server behind it.
struct Case<'a> {
    client: &'a Host,
    frontend: &'a str,
    server: &'a Host,
    backend: &'a str,
}

impl Case<'_> {
    fn end(address: &str, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(address.parse()?, port))
    }

    /// All packets of the client carry headers, including the SYN. The server's carry them once it
    /// has accepted.
    fn over_tcp(&self) -> Result<()> {
        let (to, at) = (Self::end(self.frontend, 80)?, Self::end(self.backend, 8000)?);
        let listener = self.server.enter(|| Ok(TcpListener::bind(at)?))?;
        // The timeout also applies to accept, but std can set it only on streams.
        TcpStream::from(OwnedFd::from(listener.try_clone()?)).set_read_timeout(Some(SOON))?;
        thread::scope(|scope| {
            let answering = scope.spawn(|| -> Result<()> {
                let (mut stream, _) = listener.accept().context("no connection arrived")?;
                carry(&stream, at)?;
                stream.set_read_timeout(Some(SOON))?;
                let mut question = [0; 8];
                stream.read_exact(&mut question)?;
                Ok(stream.write_all(&question)?)
            });
            let mut stream = self.client.enter(|| dial(to))?;
            stream.set_read_timeout(Some(SOON))?;
            stream.write_all(b"question")?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).context("no reply")?;
            assert_eq!(&answer, b"question");
            answering.join().expect("the server panicked")
        })
    }

    fn over_udp(&self) -> Result<()> {
        let (to, at) = (Self::end(self.frontend, 53)?, Self::end(self.backend, 5300)?);
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let open = |host: &Host, end: String| -> Result<UdpSocket> {
            let socket = host.udp_socket(&end)?;
            carry(&socket, to)?;
            Ok(socket)
        };
        let (client, server) = (open(self.client, any.into())?, open(self.server, at.to_string())?);
        let mut buffer = [0; 100];
        client.send_to(b"question", to)?;
        let (length, from) = server.recv_from(&mut buffer).context("no question")?;
        assert_eq!(&buffer[..length], b"question");
        server.send_to(b"answer", from)?;
        let (length, from) = client.recv_from(&mut buffer).context("no reply")?;
        assert_eq!((&buffer[..length], from), (&b"answer"[..], to));
        Ok(())
    }

    /// Checks that requests and replies arrive with their headers.
    fn check(&self) -> Result<()> {
        let mut questions = self.server.capture("eth0", &format!("dst host {}", self.backend))?;
        let mut answers = self.client.capture("eth0", &format!("src host {}", self.frontend))?;
        self.over_udp().context("UDP")?;
        self.over_tcp().context("TCP")?;
        let v4 = self.frontend.contains('.');
        for shown in if v4 { &["options (RR"][..] } else { &["HBH", "DSTOPT"] } {
            questions.wait_for(shown)?;
            answers.wait_for(shown)?;
        }
        Ok(())
    }
}

/// Opens a connection whose SYN already carries the headers.
fn dial(to: SocketAddr) -> Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    carry(&socket, to)?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).context("can't connect")?;
    Ok(socket.into())
}

#[test]
fn ip_options_and_extension_headers_are_kept_in_both_directions() -> Result<()> {
    let network = OneNode::warm(2)?;
    let other = network.other_node()?;
    let services = [here(), there()].map(|service| service.tcp(80, 8000).udp(53, 5300));
    let more = ["--device", "in0", "--workload-device", "pod-*"];
    let agent = network.agent_with(&manifests(&services), &more)?;
    let (pod, outside) = (&network.pods[1].host, &network.client);
    let here = &network.pods[0].host;
    for (client, frontend, server, backend) in [
        (outside, "10.96.0.10", here, "10.244.1.10"),
        (outside, "fd00:10:96::a", here, "fd00:10:244:1::10"),
        (outside, "10.96.0.11", &other, "10.0.0.2"),
        (outside, "fd00:10:96::b", &other, "fd00:a::2"),
        (pod, "10.96.0.10", here, "10.244.1.10"),
        (pod, "fd00:10:96::b", &other, "fd00:a::2"),
    ] {
        let checked = Case { client, frontend, server, backend }.check();
        checked.with_context(|| {
            let counters = agent.get(&["counters"]).unwrap_or_default();
            format!("from {} to {frontend}\n{counters}", client.name())
        })?;
    }
    Ok(())
}
