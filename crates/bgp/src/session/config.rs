//! What a session is configured with.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::family::Family;
use crate::route::NextHop;

#[derive(Clone, Debug)]
pub struct BgpSessionConfig {
    pub local_as: u32,
    pub peer_as: PeerAs,
    /// The BGP identifier: the same for all peers of a node, and different on each node.
    pub identifier: Ipv4Addr,
    /// In seconds: 0, or at least 3. The lower one of both sides is used.
    pub hold_time: u16,
    pub families: BTreeSet<Family>,
    /// Waits for the peer's connection instead of opening one.
    pub passive: bool,
    /// For how long the peer keeps the routes while this speaker restarts, in seconds. `None`: not at all.
    pub restart_time: Option<u16>,
    /// Set if the programs have kept forwarding since before this process began: until when peers wait for it to announce
    /// again what the process before has announced.
    pub restarted: Option<Duration>,
}

impl BgpSessionConfig {
    pub const DEFAULT_HOLD_TIME: u16 = 9;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAs {
    Number(u32),
    /// Any other than the local one.
    External,
    /// The local one.
    Internal,
}

impl PeerAs {
    pub fn accepts_as(self, peer: u32, local: u32) -> bool {
        match self {
            Self::Number(number) => peer == number,
            Self::External => peer != local,
            Self::Internal => peer == local,
        }
    }
}

/// This node's addresses towards the peer, of the interface that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHops {
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// Only if the peer is on the same link.
    pub link_local: Option<Ipv6Addr>,
}

impl NextHops {
    /// `None`: routes of the family can't be announced. `extended`: the peer accepts IPv6 next hops for IPv4.
    pub(crate) fn next_hop_for(&self, family: Family, extended: bool) -> Option<NextHop> {
        let ipv6 = match (self.ipv6, self.link_local) {
            (Some(global), link_local) => Some(NextHop::Ipv6 { global, link_local }),
            (None, Some(global)) => Some(NextHop::Ipv6 { global, link_local: None }),
            (None, None) => None,
        };
        match family {
            Family::Ipv4 => self.ipv4.map(NextHop::Ipv4).or(ipv6.filter(|_| extended)),
            Family::Ipv6 => ipv6,
        }
    }
}

/// An OPEN is expected within this time after a connection.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// An attempt to connect ends after this time.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the peer has to decide for one of two connections that were opened at the same time.
pub(super) const COLLISION_TIMEOUT: Duration = Duration::from_secs(5);
/// RFC 9687: at least this long may a peer not read.
pub(super) const MIN_SEND_HOLD_TIME: Duration = Duration::from_secs(480);
/// Between two repetitions of all routes for a peer that asks for them.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
