//! SCTP: packets that arrive at a host, and its sockets where the kernel has them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::sockopt::{Linger, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    listen, recvfrom, setsockopt, socket,
};
use nix::sys::time::TimeVal;

use super::echo::TICK;
use super::server::socket_address;
use super::{Echo, Host, SOON};

/// Whether this kernel has SCTP sockets.
pub fn has_sctp() -> bool {
    open(AddressFamily::Inet, SockType::Stream).is_ok()
}

/// Receives all SCTP packets that a host's stack delivers.
pub struct SctpReceiver {
    v4: OwnedFd,
    v6: OwnedFd,
}

/// An SCTP packet without its network header.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceivedSctp {
    pub from: SocketAddr,
    pub to_port: u16,
    pub chunk: u8,
    pub checksum_is_right: bool,
}

/// An association of the kernel's, with time limits. Both ends have one address: Services promise no more.
#[derive(Debug)]
pub struct SctpStream(File);

impl Host {
    /// Connects from a free port of an address of this host, or from its port.
    pub fn sctp_connect(&self, from: &str, to: &str) -> Result<SctpStream> {
        let [own, other] = [socket_address(from)?, socket_address(to)?];
        let connected = || {
            let socket = SctpStream::bind(own)?;
            connect(socket.as_raw_fd(), &SockaddrStorage::from(other))?;
            Ok(SctpStream::of(socket, SOON)?)
        };
        self.enter(connected).with_context(|| format!("{from} can't connect to {to}"))
    }

    /// Starts a server that responds to each line of an association.
    pub fn sctp_echo(&self, at: &str, name: &str) -> Result<Echo> {
        let address = socket_address(at)?;
        let listening = || {
            let socket = SctpStream::bind(address)?;
            listen(&socket, Backlog::new(16)?)?;
            set_time_limit(&socket, TICK)?;
            // It accepts what the socket accepts.
            Ok(TcpListener::from(socket))
        };
        let listener = self.enter(listening).with_context(|| format!("can't listen on {at}"))?;
        Ok(Echo::to_lines(name, move || {
            let (accepted, peer) = listener.accept()?;
            Ok((SctpStream::of(accepted.into(), TICK)?, peer))
        }))
    }

    /// Receives SCTP packets from now on.
    pub fn sctp_receiver(&self) -> Result<SctpReceiver> {
        let of = |family| -> Result<OwnedFd> {
            let socket = open(family, SockType::Raw)?;
            set_time_limit(&socket, SOON)?;
            Ok(socket)
        };
        let both =
            || Ok(SctpReceiver { v4: of(AddressFamily::Inet)?, v6: of(AddressFamily::Inet6)? });
        self.enter(both).with_context(|| format!("{} has no raw sockets", self.name()))
    }
}

impl SctpStream {
    fn bind(address: SocketAddr) -> nix::Result<OwnedFd> {
        let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let socket = open(family, SockType::Stream)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        Ok(socket)
    }

    fn of(socket: OwnedFd, limit: Duration) -> io::Result<Self> {
        set_time_limit(&socket, limit)?;
        setsockopt(&socket, SendTimeout, &TimeVal::new(SOON.as_secs() as i64, 0))?;
        Ok(Self(socket.into()))
    }

    /// Sends a line to an echo server; returns its name and the client's address that it sees.
    pub fn exchange(&self, line: &str) -> Result<(String, SocketAddr)> {
        (&self.0).write_all(format!("{line}\n").as_bytes())?;
        let mut reply = String::new();
        BufReader::new(&self.0).read_line(&mut reply)?;
        let mut words = reply.trim_end().splitn(3, ' ');
        let (name, client, repeated) = (words.next(), words.next(), words.next());
        ensure!(repeated == Some(line), "{} octets came back", reply.len());
        let client = client.context("no client")?.parse()?;
        Ok((name.context("no name")?.to_owned(), client))
    }

    /// Waits for the end by the other side.
    pub fn read_end(&self) -> io::Result<usize> {
        (&self.0).read(&mut [0])
    }

    /// Ends the association with an ABORT.
    pub fn abort(self) -> Result<()> {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        Ok(setsockopt(&self.0, Linger, &at_once)?)
    }
}

impl Read for &SctpStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(to)
    }
}

impl Write for &SctpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&self.0).write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SctpReceiver {
    /// The next packet of a family. Waits for it.
    pub fn receive(&self, v6: bool) -> Result<ReceivedSctp> {
        let socket = if v6 { &self.v6 } else { &self.v4 };
        let mut buffer = [0; 2048];
        let (length, from) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer)
            .context("no SCTP packet")?;
        let from = from.context("packets have a source")?;
        // IPv4's header comes with the packet.
        let start = if v6 { 0 } else { usize::from(buffer[0] & 0xf) * 4 };
        let packet = &buffer[start..length];
        let from: IpAddr = match (from.as_sockaddr_in(), from.as_sockaddr_in6()) {
            (Some(v4), _) => v4.ip().into(),
            (_, Some(v6)) => v6.ip().into(),
            _ => bail!("{from:?} is not an IP address"),
        };
        let [a, b, c, d, .., chunk] =
            *packet.get(..13).and_then(<[u8]>::first_chunk::<13>).context("too short")?;
        let mut summed = packet.to_vec();
        let checksum = [0, 1, 2, 3].map(|byte| summed[8 + byte]);
        summed[8..12].fill(0);
        Ok(ReceivedSctp {
            from: SocketAddr::new(from, u16::from_be_bytes([a, b])),
            to_port: u16::from_be_bytes([c, d]),
            chunk,
            checksum_is_right: crc32c::crc32c(&summed).to_le_bytes() == checksum,
        })
    }
}

/// Of reads and accepts.
fn set_time_limit(socket: &OwnedFd, limit: Duration) -> nix::Result<()> {
    let limit = TimeVal::new(limit.as_secs() as i64, limit.subsec_micros().into());
    setsockopt(socket, ReceiveTimeout, &limit)
}

fn open(family: AddressFamily, kind: SockType) -> nix::Result<OwnedFd> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
}
