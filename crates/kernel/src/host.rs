//! Which sockets the programs handle: those of the agent's own network namespace; and what they reach on loopback.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use anyhow::{Context, Result};
use lb_common::layout::Host;
use nix::errno::Errno;
use nix::libc::{SO_NETNS_COOKIE, SOL_SOCKET, getsockopt, socklen_t};

/// The agent's network namespace, the lowest of these addresses in each family, and whether loopback addresses are among
/// them. The lowest one stands for the node where a Service distinguishes its clients.
pub(crate) fn own_host(addresses: &BTreeSet<IpAddr>) -> Result<Host> {
    let mut host = Host { network_namespace: own_namespace()?, ..Host::default() };
    for address in addresses.iter().rev() {
        match *address {
            IpAddr::V4(address) if address.is_loopback() => host.loopback |= Host::LOOPBACK4,
            IpAddr::V6(address) if address.is_loopback() => host.loopback |= Host::LOOPBACK6,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_opens_its_family_and_does_not_stand_for_the_node() {
        let host_of = |texts: &[&str]| {
            own_host(&texts.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
        };
        let both = host_of(&["127.0.0.1", "192.0.2.1", "::1", "2001:db8::1"]);
        assert_eq!(both.loopback, Host::LOOPBACK4 + Host::LOOPBACK6);
        assert_eq!(both.address4, std::net::Ipv4Addr::new(192, 0, 2, 1).into());
        assert_eq!(both.address6, "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().into());
        assert_eq!(host_of(&["192.0.2.1", "::1"]).loopback, Host::LOOPBACK6);
        assert_eq!(host_of(&["127.0.0.1"]).address4, Host::default().address4);
    }
}
