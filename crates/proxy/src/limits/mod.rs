//! What clients may take: connections, requests and memory in [`sources`], time in [`patience`], passwords in
//! [`verifications`], and what else is costly in [`shares`].

pub(crate) mod patience;
pub(crate) mod shares;
mod sources;
pub(crate) mod verifications;

use std::net::IpAddr;

pub(crate) use sources::{Permit, SourceRef, Sources};

/// A source as one number: of IPv4 the address, of IPv6 the /64.
fn network(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 | 1 << 63,
    }
}
