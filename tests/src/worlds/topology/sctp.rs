//! SCTP packets that arrive at a host.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, setsockopt, socket,
};
use nix::sys::time::TimeVal;

use super::{Host, SOON};

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

impl Host {
    /// Receives SCTP packets from now on.
    pub fn sctp_receiver(&self) -> Result<SctpReceiver> {
        let of = |family| -> Result<OwnedFd> {
            let socket = open(family, SockType::Raw)?;
            setsockopt(&socket, ReceiveTimeout, &TimeVal::new(SOON.as_secs() as i64, 0))?;
            Ok(socket)
        };
        let both =
            || Ok(SctpReceiver { v4: of(AddressFamily::Inet)?, v6: of(AddressFamily::Inet6)? });
        self.enter(both).with_context(|| format!("{} has no raw sockets", self.name()))
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

fn open(family: AddressFamily, kind: SockType) -> nix::Result<OwnedFd> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
}
