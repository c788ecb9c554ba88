//! Clients of the cluster's servers.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::names::TransportProtocol;
use crate::worlds::topology::{Host, SOON};

/// Which server replied, and which address it saw.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub server: String,
    pub peer: SocketAddr,
}

/// Sends a message to a server, and waits for its reply.
pub fn ask_server(from: &Host, transport: TransportProtocol, to: &str) -> Result<Reply> {
    let to: SocketAddr = to.parse().with_context(|| to.to_owned())?;
    let line = from.enter(|| match transport {
        TransportProtocol::Tcp => ask_by_tcp(to),
        TransportProtocol::Udp => ask_by_udp(to),
    })?;
    Reply::parse(&line)
}

/// Sends a message from a process of the node itself, which the agent's control group has, and waits for the reply.
pub fn ask_from_node(
    node: &Host,
    transport: TransportProtocol,
    to: &str,
    port: u16,
) -> Result<Reply> {
    // A datagram may be lost while a neighbour is resolved: it is sent again. `run` limits the time.
    let script = match transport {
        TransportProtocol::Tcp => {
            format!("exec 3<>/dev/tcp/{to}/{port} && echo hello >&3 && head --lines=1 <&3")
        }
        TransportProtocol::Udp => format!(
            "exec 3<>/dev/udp/{to}/{port} && \
             until echo hello >&3; timeout 1 dd bs=512 count=1 status=none <&3; do :; done"
        ),
    };
    Reply::parse(&node.run(["bash", "-c", &script])?)
}

/// Fails unless a connection is refused.
pub fn ensure_refused(from: &Host, to: &str) -> Result<()> {
    match ask_server(from, TransportProtocol::Tcp, to) {
        Ok(reply) => bail!("{to} gets a reply from {}", reply.server),
        Err(error) => {
            let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            ensure!(kind == Some(ErrorKind::ConnectionRefused), "{to}: {error:#}");
            Ok(())
        }
    }
}

impl Reply {
    /// `SERVER PEER MESSAGE`.
    fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let server = words.next().context("an empty reply")?.to_owned();
        let peer = words.next().context("a reply without a peer")?.parse()?;
        Ok(Self { server, peer })
    }

    pub fn ensure_from(&self, server: &str) -> Result<()> {
        ensure!(self.server == server, "reply from {} instead of {server}", self.server);
        Ok(())
    }
}

fn ask_by_tcp(to: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"hello\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the connection was closed");
    Ok(line)
}

/// A datagram may be lost while a neighbour is resolved: it is sent again.
fn ask_by_udp(to: SocketAddr) -> Result<String> {
    const RESEND: Duration = Duration::from_secs(1);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(RESEND))?;
    let mut buffer = [0; 512];
    for _ in 0..SOON.as_secs() {
        socket.send(b"hello")?;
        if let Ok(length) = socket.recv(&mut buffer) {
            return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    }
    bail!("no reply")
}
