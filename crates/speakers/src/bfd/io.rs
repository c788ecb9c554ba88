//! UDP sockets of BFD (RFC 5881, section 4).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as StdSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use lb_bfd::packet::PACKET_OCTETS;
use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, bind,
    recvmsg, setsockopt, socket, sockopt,
};
use tokio::net::UdpSocket;

use super::config::MonitoredEnds;

/// Packets that are read from one socket before anything else is done.
pub(crate) const MAX_PACKETS_AT_ONCE: usize = 256;
/// A port that another program uses is tried again.
const SOCKET_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Source ports of RFC 5881.
const FIRST_SOURCE_PORT: u16 = 49_152;
const SOURCE_PORT_ATTEMPTS: usize = 16;
/// Internetwork control.
const TRAFFIC_CLASS: i32 = 0xc0;

/// A packet, and what is known of its sender.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedPacket {
    pub from: SocketAddr,
    pub port: u16,
    pub hop_limit: u8,
    /// The interface's index.
    pub device: u32,
    pub octets: Vec<u8>,
}

/// Family (whether IPv4) and port.
type SocketKey = (bool, u16);

#[derive(Default)]
pub(crate) struct PacketReceivers {
    open: BTreeMap<SocketKey, UdpSocket>,
    retry_at: Option<Duration>,
    complaint: Option<String>,
}

impl PacketReceivers {
    pub(crate) fn open_wanted(&mut self, wanted: &BTreeSet<SocketKey>, now: Duration) {
        self.open.retain(|place, _| wanted.contains(place));
        self.retry_at = None;
        for place in wanted {
            if self.open.contains_key(place) {
                continue;
            }
            match open(*place) {
                Ok(socket) => {
                    self.open.insert(*place, socket);
                    self.complaint = None;
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if self.complaint.as_ref() != Some(&error) {
                        tracing::warn!(error, port = place.1, "bfd port not open; retrying");
                        self.complaint = Some(error);
                    }
                    self.retry_at = Some(now + SOCKET_RETRY_DELAY);
                }
            }
        }
    }

    pub fn retry_at(&self) -> Option<Duration> {
        self.retry_at
    }

    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.open.values()
    }

    pub(crate) fn receive_packets(&self) -> Vec<ReceivedPacket> {
        let mut arrived = Vec::new();
        for ((_, port), socket) in &self.open {
            for _ in 0..MAX_PACKETS_AT_ONCE {
                let received = socket
                    .try_io(tokio::io::Interest::READABLE, || receive(socket.as_raw_fd(), *port));
                match received {
                    Ok(packet) => arrived.extend(packet),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // For example an ICMP error about an earlier packet.
                    Err(_) => {}
                }
            }
        }
        arrived
    }
}

/// `None`: the kernel did not say where it comes from.
fn receive(socket: i32, port: u16) -> io::Result<Option<ReceivedPacket>> {
    // Longer packets are cut off; nothing behind their first octets is read.
    let mut octets = [0; PACKET_OCTETS + 8];
    let mut buffer = [IoSliceMut::new(&mut octets)];
    let mut space = cmsg_space!(nix::libc::in6_pktinfo, nix::libc::in_pktinfo, i32);
    let message =
        recvmsg::<SockaddrStorage>(socket, &mut buffer, Some(&mut space), MsgFlags::empty())?;
    let (mut hop_limit, mut device) = (None, None);
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => {
                hop_limit = u8::try_from(ttl).ok();
            }
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                device = u32::try_from(info.ipi_ifindex).ok();
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => device = Some(info.ipi6_ifindex),
            _ => {}
        }
    }
    let (length, from) = (message.bytes, message.address.as_ref().and_then(parse_sockaddr));
    let (Some(from), Some(hop_limit), Some(device)) = (from, hop_limit, device) else {
        return Ok(None);
    };
    let octets = octets.get(..length).unwrap_or(&octets).to_vec();
    Ok(Some(ReceivedPacket { from, port, hop_limit, device, octets }))
}

fn parse_sockaddr(storage: &SockaddrStorage) -> Option<SocketAddr> {
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(four), _) => Some(SocketAddr::new(four.ip().into(), four.port())),
        (_, Some(six)) => Some(SocketAddrV6::new(six.ip(), six.port(), 0, six.scope_id()).into()),
        _ => None,
    }
}

fn open((is_ipv4, port): SocketKey) -> Result<UdpSocket> {
    let socket = open_udp_socket(is_ipv4)?;
    // A new agent may open it while the old one ends.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    let any: IpAddr = if is_ipv4 {
        setsockopt(&socket, sockopt::Ipv4RecvTtl, &true)?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        Ipv6Addr::UNSPECIFIED.into()
    };
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(any, port)))
        .with_context(|| format!("UDP port {port}"))?;
    Ok(UdpSocket::from_std(socket)?)
}

/// Where a session's packets are sent from; a peer expects them from one port.
pub(crate) struct PacketSender {
    socket: StdSocket,
    pub port: u16,
    to: SocketAddr,
}

impl PacketSender {
    /// `port`: of an earlier agent. `random` chooses another one.
    pub fn open(path: &MonitoredEnds, port: Option<u16>, random: u64) -> Result<Self> {
        let range = u64::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
        let chosen = (0..SOURCE_PORT_ATTEMPTS as u64).map(|attempt| {
            // Spread, so that two sessions rarely meet.
            FIRST_SOURCE_PORT + (random.wrapping_add(attempt * 997) % range) as u16
        });
        let mut failure = None;
        for port in port.into_iter().chain(chosen) {
            match bound(path, port) {
                Ok(socket) => {
                    let to = with_scope(path.peer, path.hops.port(), path.device);
                    return Ok(Self { socket, port, to });
                }
                Err(error) => failure = Some(error),
            }
        }
        let failure = failure.unwrap_or_else(|| anyhow::anyhow!("no port is left"));
        Err(failure.context(format!("no bfd packets can be sent from {}", path.local)))
    }

    /// A packet that can't be sent is like a lost one.
    pub fn send(&self, octets: &[u8]) {
        if let Err(error) = self.socket.send_to(octets, self.to) {
            tracing::debug!(error = format!("{error:#}"), to = %self.to, "bfd packet not sent");
        }
    }
}

fn bound(path: &MonitoredEnds, port: u16) -> Result<StdSocket> {
    let socket = open_udp_socket(path.local.is_ipv4())?;
    let limit = i32::from(u8::MAX);
    if path.local.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4Ttl, &limit)?;
        setsockopt(&socket, sockopt::Ipv4Tos, &TRAFFIC_CLASS)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6Ttl, &limit)?;
        setsockopt(&socket, sockopt::Ipv6TClass, &TRAFFIC_CLASS)?;
    }
    let from = with_scope(path.local, port, path.device);
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from)).with_context(|| from.to_string())?;
    Ok(socket)
}

/// Only link-local addresses are of an interface.
fn with_scope(address: IpAddr, port: u16, device: u32) -> SocketAddr {
    match address {
        IpAddr::V6(six) if six.is_unicast_link_local() => {
            SocketAddrV6::new(six, port, 0, device).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

fn open_udp_socket(is_ipv4: bool) -> Result<StdSocket> {
    let family = if is_ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(socket(family, SockType::Datagram, flags, None)?.into())
}
