//! Lists and destroys sockets by sock_diag(7).
//!
//! After its socket is destroyed, a process gets ECONNABORTED from the next or a waiting call. A
//! TCP peer gets a reset.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use lb_network::netlink::{Netlink, read_u32_at};
use nix::libc::{AF_INET, AF_INET6, EOPNOTSUPP, IPPROTO_TCP, IPPROTO_UDP, NLM_F_ACK, NLM_F_DUMP};
use nix::sys::socket::SockProtocol;

use super::stale::Connected;
use lb_network::snat_ports::PortSet;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, id.
const REQUEST: usize = 8 + ID;
/// `struct inet_diag_sockid`: ports, source, destination, interface, cookie.
const ID: usize = 48;
/// Offset in `struct inet_diag_msg`, after family, state, timer and retransmissions.
const ID_IN_MESSAGE: usize = 4;

/// TCP states, as bits, in which a socket has a peer: all but TIME_WAIT, CLOSE, LISTEN and the
/// requests of listening sockets. A connected UDP socket is in ESTABLISHED.
const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// State of a listening TCP socket.
const LISTENING: u32 = 1 << 10;
/// States of a bound UDP socket: CLOSE, or ESTABLISHED if it is connected.
const BOUND: u32 = 1 << 7 | 1 << 1;

/// Identifies a socket to the kernel.
pub struct Handle {
    family: u8,
    protocol: u8,
    id: [u8; ID],
}

/// Access to the sockets of this network namespace.
pub(crate) struct Diagnosis {
    netlink: Netlink,
}

impl Diagnosis {
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(SockProtocol::NetlinkSockDiag)
            .context("the kernel's list of sockets can't be opened (CONFIG_INET_DIAG)")?;
        Ok(Self { netlink })
    }

    /// All connected TCP and UDP sockets that are wanted.
    pub fn connected(&mut self, wanted: impl Fn(&Connected) -> bool) -> Result<Vec<Handle>> {
        let mut found = Vec::new();
        for (protocol, family) in kinds() {
            self.list((family, protocol), CONNECTED, |message| {
                if let Some((socket, id)) = read_socket(message)
                    && wanted(&socket)
                {
                    found.push(Handle { family, protocol, id });
                }
            })?;
        }
        Ok(found)
    }

    /// The ports of all listening TCP sockets and of all bound UDP sockets.
    pub(crate) fn local_ports(&mut self) -> Result<PortSet> {
        let mut ports = PortSet::default();
        for (protocol, family) in kinds() {
            let states = if protocol == IPPROTO_TCP as u8 { LISTENING } else { BOUND };
            self.list((family, protocol), states, |message| {
                if let Some([high, low, ..]) = message.get(ID_IN_MESSAGE..) {
                    ports.add(u16::from_be_bytes([*high, *low]));
                }
            })?;
        }
        Ok(ports)
    }

    /// All sockets of a family and protocol in one of these states.
    fn list(&mut self, of: (u8, u8), states: u32, each: impl FnMut(&[u8])) -> Result<()> {
        match self.ask(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, of, states, &[0; ID], each) {
            // The kernel has no IPv6, or can't list sockets of this protocol.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (family, protocol) = of;
                tracing::debug!(family, protocol, %error, "sockets not listed");
                Ok(())
            }
            other => other.context("the kernel does not list its sockets"),
        }
    }

    /// Returns false if the socket is closed already.
    pub(crate) fn destroy(&mut self, socket: &Handle) -> Result<bool> {
        let of = (socket.family, socket.protocol);
        match self.ask(SOCK_DESTROY, NLM_F_ACK, of, CONNECTED, &socket.id, |_| ()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => bail!(
                "this kernel can't end sockets (CONFIG_INET_DIAG_DESTROY is off): processes of \
                 this node keep talking to backends that are gone until they notice"
            ),
            Err(error) => Err(error).context("a socket can't be ended"),
        }
    }

    fn ask(
        &mut self,
        kind: u16,
        flags: i32,
        (family, protocol): (u8, u8),
        states: u32,
        id: &[u8; ID],
        each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut body = Vec::with_capacity(REQUEST);
        body.extend([family, protocol, 0, 0]);
        body.extend(states.to_ne_bytes());
        body.extend(id);
        self.netlink.ask(kind, flags, &body, each)
    }
}

/// The protocols and families whose sockets are listed.
fn kinds() -> impl Iterator<Item = (u8, u8)> {
    let families = [AF_INET as u8, AF_INET6 as u8];
    [IPPROTO_TCP as u8, IPPROTO_UDP as u8]
        .into_iter()
        .flat_map(move |protocol| families.into_iter().map(move |family| (protocol, family)))
}

fn read_socket(message: &[u8]) -> Option<(Connected, [u8; ID])> {
    let family = i32::from(*message.first()?);
    let id: [u8; ID] = message.get(ID_IN_MESSAGE..)?.get(..ID)?.try_into().ok()?;
    let port = u16::from_be_bytes([id[2], id[3]]);
    let address: [u8; 16] = id[20..36].try_into().ok()?;
    let address = match family {
        AF_INET => {
            let [a, b, c, d, ..] = address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(address)),
        _ => return None,
    };
    let (low, high) = (read_u32_at(&id, 40)?, read_u32_at(&id, 44)?);
    let cookie = u64::from(low) | u64::from(high) << 32;
    Some((Connected { cookie, remote: SocketAddr::new(address, port) }, id))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    /// The cookies and remote addresses of all sockets that are connected to one of `ends`.
    fn listed(ends: &[SocketAddr]) -> HashSet<(u64, SocketAddr)> {
        let listed = RefCell::new(HashSet::new());
        let mut diagnosis = Diagnosis::open().expect("no privileges are needed");
        let found = diagnosis.connected(|socket| {
            let wanted = ends.contains(&socket.remote);
            if wanted {
                listed.borrow_mut().insert((socket.cookie, socket.remote));
            }
            wanted
        });
        assert_eq!(found.expect("a list of sockets").len(), listed.borrow().len());
        listed.into_inner()
    }

    /// Other processes may have connected sockets with the same addresses.
    #[test]
    fn connected_sockets_are_listed_with_their_peers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let tcp = listener.local_addr().expect("it is bound");
        let _stream = TcpStream::connect(tcp).expect("it listens");
        let server = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let udp = server.local_addr().expect("it is bound");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let before = listed(&[tcp, udp]);
        assert!(before.iter().any(|(_, remote)| *remote == tcp), "{before:?}");
        client.connect(udp).expect("connecting sends nothing");
        let after = listed(&[tcp, udp]);
        assert!(
            after.difference(&before).any(|(_, remote)| *remote == udp),
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn a_truncated_socket_is_none() {
        assert!(read_socket(&[2, 1, 0, 0]).is_none());
    }
}
