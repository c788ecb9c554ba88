//! What both versions say.

use std::fmt::{self, Display};
use std::net::SocketAddr;

/// A header and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// `None`: use those of the connection itself. The load balancer checks this proxy's health, or forwards what has no
    /// IP addresses.
    pub addresses: Option<ProxiedAddresses>,
    /// Octets of the header. The client's data follows.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedAddresses {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// Longest header that is accepted.
pub const MOST_OCTETS: usize = 4096;

/// Why a connection does not begin with a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub(super) &'static str);

impl Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Invalid {}

/// Both addresses in one family: IPv6 if one of them needs it.
pub(crate) fn same_family(addresses: &ProxiedAddresses) -> ProxiedAddresses {
    let [source, destination] = [addresses.source, addresses.destination]
        .map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    let both = ProxiedAddresses { source, destination };
    if source.is_ipv4() == destination.is_ipv4() {
        return both;
    }
    let map = |end: SocketAddr| match end {
        SocketAddr::V4(end) => SocketAddr::new(end.ip().to_ipv6_mapped().into(), end.port()),
        SocketAddr::V6(_) => end,
    };
    ProxiedAddresses { source: map(source), destination: map(destination) }
}
