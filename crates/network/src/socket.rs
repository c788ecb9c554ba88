//! An asynchronous netlink socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, sendto,
    setsockopt, socket,
};
use tokio::io::unix::AsyncFd;

/// Multicast groups of the notifications.
const MULTICAST_GROUPS: [libc::c_uint; 11] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_NETCONF,
    libc::RTNLGRP_NEXTHOP,
];

/// Size of the receive buffer: thousands of notifications, as when all pods of a node are removed.
const RECEIVE_BUFFER_OCTETS: usize = 4 << 20;
/// The kernel sends no larger datagrams.
const MAX_DATAGRAM_OCTETS: usize = 64 << 10;

pub(crate) struct NetlinkSocket {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket for notifications.
    pub(crate) fn for_notices() -> Result<Self> {
        let groups = MULTICAST_GROUPS.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let socket = Self::open(SockProtocol::NetlinkRoute, groups)?;
        // Without CAP_NET_ADMIN the default size must suffice; after an overrun everything is
        // read again.
        if let Err(errno) = setsockopt(&socket.fd, RcvBufForce, &RECEIVE_BUFFER_OCTETS) {
            tracing::debug!(error = %errno, "receive buffer of the netlink socket not enlarged");
        }
        Ok(socket)
    }

    /// Opens a generic netlink socket for the notifications of a group.
    pub(crate) fn for_group(group: u32) -> Result<Self> {
        let socket = Self::open(SockProtocol::NetlinkGeneric, 0)?;
        // SAFETY: the value is read as the integer that it is, while it is there.
        let result = unsafe {
            libc::setsockopt(
                socket.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                (&raw const group).cast(),
                size_of_val(&group) as libc::socklen_t,
            )
        };
        Errno::result(result)
            .context("cannot subscribe to the kernel's notifications of interfaces")?;
        Ok(socket)
    }

    /// Opens a socket for requests.
    pub(crate) fn for_requests(protocol: SockProtocol) -> Result<Self> {
        Self::open(protocol, 0)
    }

    fn open(protocol: SockProtocol, groups: u32) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).context(
            "no netlink socket can be opened, so the devices of this machine stay unknown",
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))
            .context("the netlink socket can't be bound")?;
        // SAFETY: the `AsyncFd` owns the descriptor, which therefore stays open, and the same,
        // until both are dropped.
        let fd = unsafe { AsyncFd::register(fd)? };
        Ok(Self { fd, buffer: vec![0; MAX_DATAGRAM_OCTETS] })
    }

    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        // The kernel handles it within the call.
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), datagram, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// Waits until a datagram can be received. Cancellation safe.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(|mut guard| guard.retain_ready())
    }

    /// Receives the next datagram from the kernel, if one is waiting.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<&[u8]>> {
        let Self { fd, buffer } = self;
        loop {
            let received = fd.try_io(tokio::io::Interest::READABLE, |fd| {
                Ok(recvfrom::<NetlinkAddr>(fd.as_raw_fd(), buffer)?)
            });
            match received {
                Ok((length, sender)) => {
                    // Any process can send to this socket; only datagrams from the kernel are
                    // accepted.
                    if sender.is_some_and(|sender| sender.pid() == 0) {
                        return Ok(Some(&self.buffer[..length]));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            self.readable().await?;
            if let Some(datagram) = self.try_receive()? {
                return Ok(datagram.to_owned());
            }
        }
    }
}

/// Whether notifications were lost because the receive buffer was full.
pub(crate) fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}
