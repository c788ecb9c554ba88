//! How the addresses of a pool are announced, and when an address is.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::community::Communities;
use crate::family::Family;

#[derive(Clone, Debug, PartialEq)]
pub struct Advertisement {
    /// Lengths of the prefixes that are announced instead of single addresses.
    pub ipv4_length: u8,
    pub ipv6_length: u8,
    pub local_preference: Option<u32>,
    pub communities: Communities,
    /// Whether routers get the bandwidth of addresses that have one.
    pub link_bandwidth: bool,
    pub peers: AdvertisedPeers,
}

/// Each address by itself, to all peers.
impl Default for Advertisement {
    fn default() -> Self {
        Self {
            ipv4_length: Family::Ipv4.bits(),
            ipv6_length: Family::Ipv6.bits(),
            local_preference: None,
            communities: Communities::default(),
            link_bandwidth: false,
            peers: AdvertisedPeers::All,
        }
    }
}

impl Advertisement {
    /// The prefix that is announced for an address. A length beyond the family's is the address itself.
    pub fn prefix(&self, address: IpAddr) -> IpNet {
        let (length, bits) = match address {
            IpAddr::V4(_) => (self.ipv4_length, Family::Ipv4.bits()),
            IpAddr::V6(_) => (self.ipv6_length, Family::Ipv6.bits()),
        };
        // Not longer than an address.
        IpNet::new(address, length.min(bits)).map_or_else(|_| address.into(), |net| net.trunc())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdvertisedPeers {
    All,
    Named(BTreeSet<String>),
}

impl AdvertisedPeers {
    pub fn include(&self, peer: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(peer),
        }
    }
}

/// `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalTrafficPolicy {
    Cluster,
    Local,
}

/// Endpoints of a Service that accept new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadyEndpoints {
    pub anywhere: u32,
    pub on_this_node: u32,
}

impl ExternalTrafficPolicy {
    /// Whether this node announces the addresses of a Service.
    pub fn announces(self, ready: ReadyEndpoints) -> bool {
        match self {
            Self::Cluster => ready.anywhere > 0,
            Self::Local => ready.on_this_node > 0,
        }
    }
}
