//! The PROXY protocol, versions 1 and 2: a load balancer's word about the client, before the first octet of a connection.
//!
//! Invariants:
//! - Of what begins a connection, the outcome is final: more octets turn neither a header nor an error into something
//!   else.
//! - At most [`MOST_OCTETS`] are read.
//!
//! The caller accepts it only from peers that are configured: others would choose their own address. TLVs are skipped,
//! a checksum among them is not verified.

mod header;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use header::{Invalid, MOST_OCTETS, ProxiedAddresses, ProxyHeader};
pub use v1::encode_v1;
pub use v2::encode_v2;

/// Which of the two a connection to an endpoint begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl Version {
    pub fn encode(self, addresses: &ProxiedAddresses) -> Vec<u8> {
        match self {
            Self::V1 => encode_v1(Some(addresses)),
            Self::V2 => encode_v2(Some(addresses)),
        }
    }
}

/// Parses the beginning of a connection. `None`: more octets are needed.
pub fn parse_proxy_header(octets: &[u8]) -> Result<Option<ProxyHeader>, Invalid> {
    let begins_like = |beginning: &[u8]| {
        let shared = beginning.len().min(octets.len());
        beginning[..shared] == octets[..shared]
    };
    match () {
        _ if begins_like(v1::BEGINNING) => v1::parse_v1(octets),
        _ if begins_like(v2::SIGNATURE) => v2::parse_v2(octets),
        _ => Err(Invalid("connection does not begin with a header of the PROXY protocol")),
    }
}
