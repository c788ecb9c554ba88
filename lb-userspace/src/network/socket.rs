//! A socket of netlink that waits in a runtime: datagrams in and out.

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

/// What the kernel is to tell us when it changes.
const GROUPS: [libc::c_uint; 11] = [
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

/// How much may wait for us in the kernel: thousands of notices, as when a node's pods all go.
const BACKLOG: usize = 4 << 20;
/// The kernel makes no larger datagrams.
const DATAGRAM: usize = 64 << 10;

pub struct Socket {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Socket {
    /// One that is told of changes.
    pub fn for_notices() -> Result<Self> {
        let groups = GROUPS.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let socket = Self::open(SockProtocol::NetlinkRoute, groups)?;
        // Without CAP_NET_ADMIN the usual size has to do: what does not fit is read anew.
        if let Err(errno) = setsockopt(&socket.fd, RcvBufForce, &BACKLOG) {
            tracing::debug!(error = %errno, "receive buffer of the netlink socket not enlarged");
        }
        Ok(socket)
    }

    /// One of generic netlink that is told what a group is told.
    pub fn for_group(group: u32) -> Result<Self> {
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

    /// One to ask by.
    pub fn for_requests(protocol: SockProtocol) -> Result<Self> {
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
        Ok(Self { fd, buffer: vec![0; DATAGRAM] })
    }

    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        // To the kernel itself, which takes it at once.
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), datagram, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// Waits until there is something to receive. Nothing is lost if it is given up.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(|mut guard| guard.retain_ready())
    }

    /// The next datagram of the kernel, if one is waiting.
    pub fn try_receive(&mut self) -> io::Result<Option<&[u8]>> {
        let Self { fd, buffer } = self;
        loop {
            let received = fd.try_io(tokio::io::Interest::READABLE, |fd| {
                Ok(recvfrom::<NetlinkAddr>(fd.as_raw_fd(), buffer)?)
            });
            match received {
                Ok((length, sender)) => {
                    // Any process may write to us; only the kernel is believed.
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

/// Whether the kernel had more to tell than we had room for.
pub fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}
