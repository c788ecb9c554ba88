//! TCP sockets of BGP, with the options that protect sessions: MD5 signatures (RFC 2385), the hop limit (RFC 5082).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use ipnet::IpNet;
use lb_bgp::session::NextHops;
use lb_network::{InterfaceAddress, choose_preferred_address, read_addresses};
use nix::errno::Errno;
use nix::libc::{
    self, IP_MINTTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_MINHOPCOUNT, TCP_MD5SIG,
    TCP_SAVE_SYN, TCP_SAVED_SYN, c_int, linger,
};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, listen,
    setsockopt, shutdown, socket, sockopt,
};
use nix::{setsockopt_impl, sockopt_impl};

use super::config::{MAX_PASSWORD_OCTETS, PasswordSecret};

sockopt_impl!(
    /// The least TTL of packets that are accepted.
    MinTtl, SetOnly, IPPROTO_IP, IP_MINTTL, c_int
);
sockopt_impl!(
    /// The least hop limit of packets that are accepted.
    MinHopCount, SetOnly, IPPROTO_IPV6, IPV6_MINHOPCOUNT, c_int
);
sockopt_impl!(
    /// Keeps the SYN of each connection that is accepted.
    SaveSyn, SetOnly, IPPROTO_TCP, TCP_SAVE_SYN, c_int
);
sockopt_impl!(
    /// The key of segments from and to an address.
    Md5, SetOnly, IPPROTO_TCP, TCP_MD5SIG, Md5Key
);

/// `struct tcp_md5sig`.
#[repr(C, align(8))]
#[derive(Clone)]
pub struct Md5Key {
    /// `struct sockaddr_storage`.
    address: [u8; 128],
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: i32,
    key: [u8; MAX_PASSWORD_OCTETS],
}

impl Md5Key {
    fn new(peer: IpAddr, secret: &PasswordSecret) -> Self {
        let mut address = [0; 128];
        let family = match peer {
            IpAddr::V4(four) => {
                address[4..8].copy_from_slice(&four.octets());
                AddressFamily::Inet
            }
            IpAddr::V6(six) => {
                address[8..24].copy_from_slice(&six.octets());
                AddressFamily::Inet6
            }
        };
        address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        let length = secret.0.len().min(MAX_PASSWORD_OCTETS);
        let mut key = [0; MAX_PASSWORD_OCTETS];
        key[..length].copy_from_slice(&secret.0[..length]);
        Self { address, flags: 0, prefix_length: 0, key_length: length as u16, interface: 0, key }
    }
}

/// How a connection is protected, and how far it may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HopSecurity {
    /// Sent packets get no further than this.
    ttl: u8,
    /// Packets with less are discarded.
    least: Option<u8>,
}

impl HopSecurity {
    /// Routers of another autonomous system send with TTL 1 unless they are configured otherwise, and expect the same
    /// neighbour to be on the link.
    pub fn new(is_internal: bool, multihop: bool, hops: Option<u8>) -> Self {
        let ttl = if is_internal || multihop || hops.is_some() { u8::MAX } else { 1 };
        Self { ttl, least: hops.map(|hops| u8::MAX - (hops - 1)) }
    }

    /// Whether the SYN of an accepted connection came from near enough. The kernel does not check packets that arrive
    /// before [`Self::apply_to_socket`], but a peer that is too far away cannot have sent that SYN. False if the kernel has not
    /// saved the SYN, as in a flood of SYNs.
    pub(crate) fn admits_syn(self, stream: &impl AsRawFd) -> bool {
        self.least.is_none_or(|least| hop_limit_of_syn(stream).is_some_and(|ttl| ttl >= least))
    }

    pub(crate) fn apply_to_socket(
        self,
        socket: &impl std::os::fd::AsFd,
        is_ipv4: bool,
    ) -> io::Result<()> {
        let (ttl, least) = (c_int::from(self.ttl), self.least.map_or(0, c_int::from));
        if is_ipv4 {
            setsockopt(socket, sockopt::Ipv4Ttl, &ttl)?;
            setsockopt(socket, MinTtl, &least)?;
            // Internetwork control, as routers mark their sessions.
            setsockopt(socket, sockopt::Ipv4Tos, &0xc0)?;
        } else {
            setsockopt(socket, sockopt::Ipv6Ttl, &ttl)?;
            setsockopt(socket, MinHopCount, &least)?;
            setsockopt(socket, sockopt::Ipv6TClass, &0xc0)?;
        }
        setsockopt(socket, sockopt::TcpNoDelay, &true)?;
        Ok(())
    }
}

fn hop_limit_of_syn(stream: &impl AsRawFd) -> Option<u8> {
    let mut headers = [0_u8; 256];
    let mut length = headers.len() as libc::socklen_t;
    let socket = stream.as_raw_fd();
    // SAFETY: the kernel writes at most the given length of a buffer that lives.
    let outcome = unsafe {
        libc::getsockopt(
            socket,
            IPPROTO_TCP,
            TCP_SAVED_SYN,
            headers.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    read_hop_limit(headers.get(..length as usize).filter(|_| outcome == 0)?)
}

/// Of a packet that begins with its IP header.
fn read_hop_limit(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => packet.get(8).copied(),
        6 => packet.get(7).copied(),
        _ => None,
    }
}

/// Begins a connection, which becomes writable when it is established, or has failed.
pub(crate) fn begin_connect(
    to: SocketAddr,
    from: Option<IpAddr>,
    reach: HopSecurity,
    secret: Option<&PasswordSecret>,
) -> Result<TcpStream> {
    let socket = open_tcp_socket(to.is_ipv4())?;
    reach.apply_to_socket(&socket, to.is_ipv4()).context("IP options")?;
    if let Some(secret) = secret {
        setsockopt(&socket, Md5, &Md5Key::new(to.ip(), secret)).context("TCP_MD5SIG")?;
    }
    if let Some(from) = from {
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))
            .with_context(|| format!("the source address {from}"))?;
    }
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error).context(to.to_string()),
    }
}

/// For connections of peers; `secrets`: of each peer that has one. The kernel discards what these peers send otherwise.
pub(crate) fn listen_for_peers<'a>(
    is_ipv4: bool,
    port: u16,
    secrets: impl Iterator<Item = (IpAddr, &'a PasswordSecret)>,
) -> Result<TcpListener> {
    let socket = open_tcp_socket(is_ipv4)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, SaveSyn, &1)?;
    let any: IpAddr = match is_ipv4 {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => {
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            Ipv6Addr::UNSPECIFIED.into()
        }
    };
    for (peer, secret) in secrets.filter(|(peer, _)| peer.is_ipv4() == is_ipv4) {
        setsockopt(&socket, Md5, &Md5Key::new(peer, secret)).context("TCP_MD5SIG")?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(any, port)))?;
    listen(&socket, Backlog::new(64)?)?;
    Ok(TcpListener::from(socket))
}

fn open_tcp_socket(is_ipv4: bool) -> Result<OwnedFd> {
    let family = if is_ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(socket(family, SockType::Stream, flags, None)?)
}

/// Closes a connection that is no peer's, with a reset.
pub(crate) fn reset_connection(stream: &impl std::os::fd::AsFd) {
    let now = linger { l_onoff: 1, l_linger: 0 };
    // Otherwise it is closed in the ordinary way.
    let _ = setsockopt(stream, sockopt::Linger, &now);
}

/// Nothing more is sent. What has been sent still arrives.
pub(crate) fn shut_down_writes(stream: &impl AsRawFd) {
    // The peer may have closed it already.
    let _ = shutdown(stream.as_raw_fd(), Shutdown::Write);
}

/// The link of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLink {
    /// This node's addresses on the interface.
    pub next_hops: NextHops,
    /// The index of the interface with the local address.
    pub interface: Option<u32>,
    /// Whether the peer is on the same link.
    pub is_on_link: bool,
}

/// `local`: of a connection; a link-local address with its interface.
pub(crate) fn find_link(local: SocketAddr, peer: IpAddr) -> io::Result<ConnectionLink> {
    Ok(find_link_among(&read_addresses()?, local, peer))
}

/// `all`: of this node, by interface.
fn find_link_among(
    all: &[(u32, InterfaceAddress)],
    local: SocketAddr,
    peer: IpAddr,
) -> ConnectionLink {
    let scope = match local {
        SocketAddr::V6(six) => six.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let local = local.ip().to_canonical();
    // Interfaces with one link-layer address also have the same link-local one.
    let is_it = |(index, own): &&(u32, InterfaceAddress)| {
        own.ip == local && (*index == scope || !is_link_local(local))
    };
    let interface = all.iter().find(is_it).map(|(index, _)| *index);
    let of_interface = all.iter().filter(|(index, _)| Some(*index) == interface);
    let here: Vec<&InterfaceAddress> = of_interface.map(|(_, own)| own).collect();
    let contains = |own: &&InterfaceAddress| {
        IpNet::new(own.ip, own.prefix).is_ok_and(|prefix| prefix.contains(&peer))
    };
    let is_on_link = is_link_local(peer) || here.iter().any(contains);
    let four = |address| match address {
        IpAddr::V4(four) => Some(four),
        IpAddr::V6(_) => None,
    };
    let six = |address| match address {
        IpAddr::V6(six) => Some(six),
        IpAddr::V4(_) => None,
    };
    let preferred = |v6| choose_preferred_address(here.iter().copied(), v6);
    let link_local = here.iter().map(|own| own.ip).filter(|ip| is_link_local(*ip)).find_map(six);
    let next_hops = NextHops {
        ipv4: four(local).or_else(|| preferred(false).and_then(four)),
        ipv6: six(local)
            .filter(|_| !is_link_local(local))
            .or_else(|| preferred(true).and_then(six)),
        link_local: link_local.filter(|_| is_on_link),
    };
    ConnectionLink { next_hops, interface, is_on_link }
}

pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// With the interface, if the address is only valid there.
pub(crate) fn scoped_socket_address(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(six) if is_link_local(address) => {
            SocketAddrV6::new(six, port, 0, interface).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_has_the_layout_of_the_kernel() {
        assert_eq!(size_of::<Md5Key>(), 216);
        let key = Md5Key::new("192.0.2.1".parse().unwrap(), &PasswordSecret(b"ab".to_vec()));
        assert_eq!(key.address[..8], [2, 0, 0, 0, 192, 0, 2, 1]);
        assert_eq!((key.key_length, &key.key[..3]), (2, &b"ab\0"[..]));
        let key = Md5Key::new("2001:db8::1".parse().unwrap(), &PasswordSecret(vec![7; 200]));
        assert_eq!((key.address[0], key.address[8], key.address[23]), (10, 0x20, 1));
        assert_eq!(key.key_length, 80);
    }

    #[test]
    fn hops_become_the_least_ttl() {
        let reach = |internal, multihop, hops| {
            let HopSecurity { ttl, least } = HopSecurity::new(internal, multihop, hops);
            (ttl, least)
        };
        assert_eq!(reach(false, false, None), (1, None));
        assert_eq!(reach(false, false, Some(1)), (255, Some(255)));
        assert_eq!(reach(false, true, Some(254)), (255, Some(2)));
        assert_eq!(reach(true, false, None), (255, None));
    }

    #[test]
    fn the_hop_limit_is_where_the_version_has_it() {
        let mut packet = [0; 40];
        (packet[7], packet[8]) = (7, 8);
        let with = |version: u8| [&[version << 4][..], &packet[1..]].concat();
        assert_eq!(
            [4, 6, 5].map(|version| read_hop_limit(&with(version))),
            [Some(8), Some(7), None]
        );
        assert_eq!(read_hop_limit(&[]), None);
        assert_eq!(read_hop_limit(&[0x45; 8]), None);
    }

    #[test]
    fn next_hops_are_of_the_interface_of_the_connection() {
        let local = SocketAddr::from(([127, 0, 0, 1], 179));
        let found = find_link(local, local.ip()).unwrap();
        assert_eq!(found.next_hops.ipv4, Some(Ipv4Addr::LOCALHOST));
        assert_eq!(found.next_hops.ipv6, None, "::1 is no next hop");
        // lo.
        assert_eq!((found.interface, found.is_on_link), (Some(1), true));
        assert!(!find_link(local, "192.0.2.1".parse().unwrap()).unwrap().is_on_link);
    }

    /// For example of a VLAN, and of the interface below it.
    #[test]
    fn interfaces_with_the_same_link_local_address_differ() {
        let own =
            |interface, ip: &str| (interface, InterfaceAddress::of_subnet(ip.parse().unwrap(), 64));
        let all = [
            own(2, "fe80::1"),
            own(2, "2001:db8:2::1"),
            own(3, "fe80::1"),
            own(3, "2001:db8:3::1"),
        ];
        for (interface, global) in [(2, "2001:db8:2::1"), (3, "2001:db8:3::1")] {
            let local = SocketAddrV6::new("fe80::1".parse().unwrap(), 179, 0, interface).into();
            let found = find_link_among(&all, local, "fe80::2".parse().unwrap());
            assert_eq!(found.interface, Some(interface));
            assert_eq!(found.next_hops.ipv6, global.parse().ok());
            assert!(found.is_on_link);
        }
    }

    /// A temporary address ends while the session continues, and a deprecated one may be another node's soon.
    #[test]
    fn the_next_hop_of_the_other_family_is_an_address_that_stays() {
        let own = |ip: &str| InterfaceAddress::of_subnet(ip.parse().unwrap(), 64);
        let temporary = InterfaceAddress { secondary: true, ..own("2001:db8::1") };
        let deprecated = InterfaceAddress { deprecated: true, ..own("2001:db8::2") };
        let stable = own("2001:db8::3");
        for six in [[&temporary, &deprecated, &stable], [&stable, &deprecated, &temporary]] {
            let four = InterfaceAddress::of_subnet("192.0.2.1".parse().unwrap(), 24);
            let all: Vec<_> =
                std::iter::once(&four).chain(six).map(|own| (2, own.clone())).collect();
            let local = SocketAddr::from(([192, 0, 2, 1], 179));
            let found = find_link_among(&all, local, "192.0.2.254".parse().unwrap());
            assert!(found.is_on_link);
            assert_eq!(found.next_hops.ipv4, "192.0.2.1".parse().ok());
            assert_eq!(found.next_hops.ipv6, "2001:db8::3".parse().ok());
        }
    }
}
