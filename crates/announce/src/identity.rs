//! The participants of an election: interfaces of nodes.

use std::fmt;
use std::net::IpAddr;

use lb_common::hash::mix;

/// A link-layer address.
pub type LinkAddress = [u8; 6];

/// As the tools of Linux write it.
pub fn format_link_address(address: LinkAddress) -> String {
    address.map(|octet| format!("{octet:02x}")).join(":")
}

/// A participant: the hash of its node's name and its interface's name, so that it stays the same
/// over restarts. A node with two interfaces on one link is two participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParticipantId(pub u64);

impl ParticipantId {
    pub fn of_interface(node: &str, interface: &str) -> Self {
        let name = node.bytes().chain([0]).chain(interface.bytes());
        Self(name.fold(HASH_SEED, |hash, octet| mix(hash ^ u64::from(octet))))
    }

    /// The participant's position in the order of candidates for an address; the highest comes first. The order
    /// is the same on all nodes and in all versions.
    pub(crate) fn weight_for(self, address: IpAddr) -> (u64, Self) {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let bits = u128::from_be_bytes(octets);
        (mix(mix(self.0 ^ (bits >> 64) as u64) ^ bits as u64), self)
    }
}

const HASH_SEED: u64 = 0x6d69_6c6c_7261_6365;

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How far an epoch is ahead of another one; negative: behind. Epochs are numbers on a circle, so
/// that no message can name the last one.
pub(crate) fn epoch_distance(epoch: u32, base: u32) -> i32 {
    epoch.wrapping_sub(base).cast_signed()
}

/// This participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParticipantIdentity {
    pub node: String,
    pub interface: String,
    /// Random, chosen at every start. Replaced if another process uses the same names.
    pub incarnation: u64,
}

impl ParticipantIdentity {
    pub fn id(&self) -> ParticipantId {
        ParticipantId::of_interface(&self.node, &self.interface)
    }
}

/// Whether a participant is a candidate for an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateRank {
    /// The participant is no candidate.
    #[default]
    None,
    /// Only if there is no other candidate.
    LastResort,
    Candidate,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another result moves addresses between nodes during an upgrade.
    #[test]
    fn the_order_never_changes() {
        let id = ParticipantId::of_interface("node-1", "eth0");
        assert_eq!(id.to_string(), "71b45039fdb96d07");
        let address: IpAddr = "192.0.2.1".parse().expect("an address");
        assert_eq!(id.weight_for(address).0, 0x2dcf_2b7d_4f0c_44cf);
    }
}
