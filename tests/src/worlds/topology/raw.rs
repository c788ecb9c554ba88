//! Sends handmade packets from a host.

use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto,
    socket,
};

use super::Host;
use crate::packets::Packet;

pub struct RawSocket {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Host {
    /// A raw socket: uses the host's routes, and packets may have any source.
    pub fn raw_socket(&self) -> Result<RawSocket> {
        let of = |family| socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw);
        let both = || Ok(RawSocket { v4: of(AddressFamily::Inet)?, v6: of(AddressFamily::Inet6)? });
        self.enter(both).with_context(|| format!("{} has no raw sockets", self.name()))
    }
}

impl RawSocket {
    /// Sends a packet without its link-layer header.
    pub fn send(&self, packet: &Packet) -> Result<()> {
        let (bytes, flags) = (packet.ip_bytes(), MsgFlags::empty());
        let sent = match packet.destination() {
            IpAddr::V4(to) => {
                let to = SockaddrIn::from(SocketAddrV4::new(to, 0));
                sendto(self.v4.as_raw_fd(), bytes, &to, flags)
            }
            IpAddr::V6(to) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0));
                sendto(self.v6.as_raw_fd(), bytes, &to, flags)
            }
        };
        let sent = sent.with_context(|| format!("can't be sent: {packet:?}"))?;
        ensure!(sent == bytes.len(), "{sent} bytes were sent of {packet:?}");
        Ok(())
    }
}
