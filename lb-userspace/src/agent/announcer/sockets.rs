//! Where heartbeats are sent and received: UDP to all machines on a link.
//!
//! The groups of all nodes (ff02::1, 224.0.0.1) need no membership, so switches that watch group
//! reports never filter them. The sockets are bound to the groups, which no router forwards, so
//! what machines elsewhere send to this node's addresses does not arrive here. Both families are used where the link has both, so that what blocks
//! one of them does not matter.

use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket as StdSocket,
};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use futures::future::select_all;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket, sockopt,
};
use tokio::net::UdpSocket;

use crate::announce::LONGEST;
use crate::network::AnnouncingLink;

/// The UDP port of heartbeats.
const PORT: u16 = 10_245;

const ALL_NODES_4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES_6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Datagrams that are read before anything else is done.
const MOST_AT_ONCE: usize = 512;

/// The sockets of one interface.
pub struct Sockets {
    sockets: Vec<(UdpSocket, SocketAddr)>,
}

impl Sockets {
    /// Opens those that the interface has addresses for; fails if there are none.
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

    /// To all machines on the link. A full queue or a missing address is like a lost datagram.
    pub fn send(&self, octets: &[u8]) {
        for (socket, to) in &self.sockets {
            if let Err(error) = socket.try_send_to(octets, *to) {
                tracing::debug!(error = format!("{error:#}"), %to, "heartbeat not sent");
            }
        }
    }

    pub async fn readable(&self) {
        let waiting = self.sockets.iter().map(|(socket, _)| Box::pin(socket.readable()));
        let _ = select_all(waiting).await;
    }

    /// Reads what has arrived from machines on the link.
    pub fn receive(&self, mut take: impl FnMut(&[u8])) {
        // One more, so that longer datagrams are not taken for whole ones.
        let mut buffer = [0; LONGEST + 1];
        for (socket, _) in &self.sockets {
            for _ in 0..MOST_AT_ONCE {
                match socket.try_recv_from(&mut buffer) {
                    Ok((length, from)) if is_on_link(from.ip()) => take(&buffer[..length]),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // For example an ICMP error about a datagram.
                    Err(_) => {}
                }
            }
        }
    }
}

/// With IPv6, senders use their link-local addresses, which no router forwards.
fn is_on_link(from: IpAddr) -> bool {
    match from {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn open_v6(link: &AnnouncingLink) -> Result<(UdpSocket, SocketAddr)> {
    let to = SocketAddrV6::new(ALL_NODES_6, PORT, 0, link.index);
    let open = || -> Result<UdpSocket> {
        let socket = new_socket(AddressFamily::Inet6, link)?;
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        bind(socket.as_raw_fd(), &SockaddrIn6::from(to))?;
        socket.set_multicast_loop_v6(false)?;
        Ok(UdpSocket::from_std(socket)?)
    };
    Ok((open().context("IPv6")?, to.into()))
}

fn open_v4(link: &AnnouncingLink) -> Result<(UdpSocket, SocketAddr)> {
    let to = SocketAddrV4::new(ALL_NODES_4, PORT);
    let open = || -> Result<UdpSocket> {
        anyhow::ensure!(
            link.prefixes.iter().any(|prefix| prefix.addr().is_ipv4()),
            "the interface has no IPv4 address"
        );
        let socket = new_socket(AddressFamily::Inet, link)?;
        bind(socket.as_raw_fd(), &SockaddrIn::from(to))?;
        socket.set_multicast_loop_v4(false)?;
        socket.set_multicast_ttl_v4(1)?;
        Ok(UdpSocket::from_std(socket)?)
    };
    Ok((open().context("IPv4")?, to.into()))
}

fn new_socket(family: AddressFamily, link: &AnnouncingLink) -> Result<StdSocket> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    // A new agent may open it while the old one ends.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::BindToDevice, &link.name.as_str().into())?;
    Ok(socket.into())
}
