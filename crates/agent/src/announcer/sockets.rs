//! Where heartbeats are sent and received: UDP to all machines on a link.
//!
//! The groups of all nodes (ff02::1, 224.0.0.1) need no membership, so switches that watch group
//! reports never filter them. The sockets are bound to the groups, which no router forwards, so
//! datagrams that machines elsewhere send to this node's addresses do not arrive here. Both
//! families are used where the link has both, so that heartbeats arrive even if one is blocked.

use std::io::{self, ErrorKind};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket as StdSocket,
};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use futures::future::select_all;
use lb_announce::MAX_HEARTBEAT_OCTETS;
use lb_network::AnnouncingLink;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, getsockopt, setsockopt,
    socket, sockopt,
};
use nix::{getsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The UDP port of heartbeats.
const PORT: u16 = 10_245;

const ALL_NODES_4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES_6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The receive buffer of each socket, in octets: as much as may arrive while the thread is busy.
const RECEIVE_BUFFER: usize = 1 << 20;

sockopt_impl!(
    /// What the kernel says about the memory of a socket (`SK_MEMINFO_*`).
    MemoryInfo, GetOnly, libc::SOL_SOCKET, libc::SO_MEMINFO, [u32; 9]
);

/// The last of [`MemoryInfo`]: how many datagrams did not fit the queue.
const DROPPED: usize = libc::SK_MEMINFO_DROPS as usize;

/// The sockets of one interface.
pub struct Sockets {
    sockets: Vec<Socket>,
}

impl Sockets {
    /// Opens a socket for each family in which the interface has an address; fails if it has none.
    pub fn open(link: &AnnouncingLink) -> Result<Self> {
        let opened = [open_v6(link), open_v4(link)];
        let mut sockets = Vec::new();
        let mut failure = None;
        for opened in opened {
            match opened {
                Ok(opened) => sockets.push(opened),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if sockets.is_empty() => Err(error)
                .with_context(|| format!("no heartbeats can be sent on interface {}", link.name)),
            _ => Ok(Self { sockets }),
        }
    }

    /// Sends to all machines on the link. If that fails, for example because a queue is full or an
    /// address is missing, the datagram counts as lost.
    pub fn send(&self, octets: &[u8]) {
        for Socket { socket, to, .. } in &self.sockets {
            if let Err(error) = socket.get_ref().send_to(octets, to) {
                tracing::debug!(error = format!("{error:#}"), %to, "heartbeat not sent");
            }
        }
    }

    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    pub async fn readable(&self) {
        let waiting = self.sockets.iter().map(|socket| Box::pin(socket.socket.readable()));
        let _ = select_all(waiting).await;
    }

    /// Reads what has arrived from machines on the link, but so many datagrams of each socket at
    /// most. Returns whether that was all.
    pub fn receive(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> bool {
        let mut all = true;
        for socket in &mut self.sockets {
            all &= socket.receive(most, &mut take);
        }
        all
    }
}

struct Socket {
    socket: AsyncFd<StdSocket>,
    to: SocketAddr,
    /// How many datagrams did not fit the socket's queue.
    dropped: u32,
}

impl Socket {
    fn new(socket: StdSocket, to: SocketAddr) -> Result<Self> {
        // Without the capability, the agent keeps the kernel's default size.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        // SAFETY: the `AsyncFd` owns the socket, whose descriptor therefore stays open, and the same,
        // until both are dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self { socket, to, dropped: 0 })
    }

    fn receive(&mut self, most: usize, take: &mut impl FnMut(&[u8])) -> bool {
        // One octet more, so that a longer datagram is not taken for a whole one.
        let mut buffer = [0; MAX_HEARTBEAT_OCTETS + 1];
        let mut is_empty = false;
        for _ in 0..most {
            // Reads from the socket itself: the runtime's readiness may be out of date.
            match self.socket.get_ref().recv_from(&mut buffer) {
                Ok((length, from)) if is_on_link(from.ip()) => take(&buffer[..length]),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    is_empty = true;
                    break;
                }
                // For example an ICMP error about a datagram.
                Err(_) => {}
            }
        }
        if is_empty {
            // So that the runtime waits for more.
            let emptied = |_: &StdSocket| io::Result::<()>::Err(ErrorKind::WouldBlock.into());
            let _ = self.socket.try_io(Interest::READABLE, emptied);
        }
        let info = getsockopt(self.socket.get_ref(), MemoryInfo);
        let dropped = info.map_or(self.dropped, |info| info[DROPPED]);
        std::mem::replace(&mut self.dropped, dropped) == dropped && is_empty
    }
}

/// With IPv6, senders use their link-local addresses, which no router forwards.
fn is_on_link(from: IpAddr) -> bool {
    match from {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn open_v6(link: &AnnouncingLink) -> Result<Socket> {
    let to = SocketAddrV6::new(ALL_NODES_6, PORT, 0, link.index);
    let open = || -> Result<Socket> {
        let socket = new_socket(AddressFamily::Inet6, link)?;
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        bind(socket.as_raw_fd(), &SockaddrIn6::from(to))?;
        socket.set_multicast_loop_v6(false)?;
        Socket::new(socket, to.into())
    };
    open().context("IPv6")
}

fn open_v4(link: &AnnouncingLink) -> Result<Socket> {
    let to = SocketAddrV4::new(ALL_NODES_4, PORT);
    let open = || -> Result<Socket> {
        anyhow::ensure!(
            link.prefixes.iter().any(|prefix| prefix.addr().is_ipv4()),
            "the interface has no IPv4 address"
        );
        let socket = new_socket(AddressFamily::Inet, link)?;
        bind(socket.as_raw_fd(), &SockaddrIn::from(to))?;
        socket.set_multicast_loop_v4(false)?;
        socket.set_multicast_ttl_v4(1)?;
        Socket::new(socket, to.into())
    };
    open().context("IPv4")
}

fn new_socket(family: AddressFamily, link: &AnnouncingLink) -> Result<StdSocket> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    // A new agent may open it while the old one ends.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::BindToDevice, &link.name.as_str().into())?;
    Ok(socket.into())
}
