//! The PROXY protocol, versions 1 and 2: a load balancer's word about the client, before the first octet of a connection.
//!
//! Invariants:
//! - Of what begins a connection, the outcome is final: more octets turn neither a header nor an error into something
//!   else.
//! - At most [`MOST_OCTETS`] are read.
//!
//! The caller accepts it only from peers that are configured: others would choose their own address. TLVs are skipped,
//! a checksum among them is not verified.

#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::fmt::{self, Display};
use std::net::SocketAddr;

pub use v1::encode as encode_v1;
pub use v2::encode as encode_v2;

/// A header and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `None`: use those of the connection itself. The load balancer checks this proxy's health, or forwards what has no
    /// IP addresses.
    pub addresses: Option<Addresses>,
    /// Octets of the header. The client's data follows.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// Longest header that is accepted.
pub const MOST_OCTETS: usize = 4096;

/// Why a connection does not begin with a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(&'static str);

impl Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Invalid {}

/// Parses the beginning of a connection. `None`: more octets are needed.
pub fn parse(octets: &[u8]) -> Result<Option<Header>, Invalid> {
    let begins_like = |beginning: &[u8]| {
        let shared = beginning.len().min(octets.len());
        beginning[..shared] == octets[..shared]
    };
    match () {
        _ if begins_like(v1::BEGINNING) => v1::parse(octets),
        _ if begins_like(v2::SIGNATURE) => v2::parse(octets),
        _ => Err(Invalid("connection does not begin with a header of the PROXY protocol")),
    }
}

/// Both addresses in one family: IPv6 if one of them needs it.
fn same_family(addresses: &Addresses) -> Addresses {
    let [source, destination] = [addresses.source, addresses.destination]
        .map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    let both = Addresses { source, destination };
    if source.is_ipv4() == destination.is_ipv4() {
        return both;
    }
    let map = |end: SocketAddr| match end {
        SocketAddr::V4(end) => SocketAddr::new(end.ip().to_ipv6_mapped().into(), end.port()),
        SocketAddr::V6(_) => end,
    };
    Addresses { source: map(source), destination: map(destination) }
}
