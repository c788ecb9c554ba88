//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel holds until they are accepted. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// For each worker, its own socket for `address`. The kernel spreads connections over them (`SO_REUSEPORT`), so
/// workers share no queue. Inherited sockets of the address come first: a socket that is closed resets the connections
/// in its queue, so all are kept, even if there are more of them than workers.
pub(crate) fn open_listeners(
    address: SocketAddr,
    inherited: Vec<TcpListener>,
    workers: usize,
) -> io::Result<Vec<TcpListener>> {
    let mut sockets = inherited;
    // Only sockets that were bound with `SO_REUSEPORT` let others have the same address.
    let shares = match sockets.first() {
        Some(first) => socket2::SockRef::from(first).reuse_port()?,
        None => true,
    };
    let mut bound = match sockets.first() {
        Some(first) => first.local_addr()?,
        None => address,
    };
    while sockets.len() < workers {
        let socket = match sockets.first() {
            Some(first) if !shares => first.try_clone()?,
            _ => bind(bound)?,
        };
        // With port 0, the first socket has a port for all.
        bound = socket.local_addr()?;
        sockets.push(socket);
    }
    for socket in &sockets {
        socket.set_nonblocking(true)?;
    }
    Ok(sockets)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn workers_get_sockets_of_one_port() {
        let sockets = open_listeners(local(), Vec::new(), 3).unwrap();
        let ports: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap().port()).collect();
        assert_eq!(ports, [ports[0]; 3]);
    }

    #[test]
    fn all_inherited_sockets_are_kept() {
        let old = open_listeners(local(), Vec::new(), 3).unwrap();
        let address = old[0].local_addr().unwrap();
        let new = open_listeners(address, old, 2).unwrap();
        assert_eq!(new.len(), 3);
    }

    #[test]
    fn an_inherited_socket_without_reuseport_is_shared() {
        let plain = TcpListener::bind(local()).unwrap();
        let address = plain.local_addr().unwrap();
        let sockets = open_listeners(address, vec![plain], 2).unwrap();
        assert_eq!(sockets.len(), 2);
        assert_eq!(sockets[1].local_addr().unwrap(), address);
    }
}
