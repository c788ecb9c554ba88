//! Which sockets the programs handle: those of the agent's own network namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use anyhow::{Context, Result};
use lb_common::layout::Host;
use nix::errno::Errno;
use nix::libc::{SO_NETNS_COOKIE, SOL_SOCKET, getsockopt, socklen_t};

/// The agent's network namespace, and the lowest of these addresses in each family. That address
/// stands for the node where a Service distinguishes its clients.
pub(crate) fn own_host(addresses: &BTreeSet<IpAddr>) -> Result<Host> {
    let mut host = Host { network_namespace: own_namespace()?, ..Host::default() };
    for address in addresses.iter().rev() {
        match *address {
            IpAddr::V4(address) => host.address4 = address.into(),
            IpAddr::V6(address) => host.address6 = address.into(),
        }
    }
    Ok(host)
}

/// The cookie of this process's network namespace.
fn own_namespace() -> Result<u64> {
    let socket = UnixDatagram::unbound().context("a socket can't be made")?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the cookie, which is that long.
    let result = unsafe {
        getsockopt(
            socket.as_raw_fd(),
            SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    Errno::result(result)
        .context("the kernel has no cookies of network namespaces (Linux 5.14 does)")?;
    Ok(cookie)
}
