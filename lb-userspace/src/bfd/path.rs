//! What a session of BFD is between, and how it is configured.

use std::net::IpAddr;

use lb_bfd::session::Config;
use lb_common::header::Bfd;

/// What a session is between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub peer: IpAddr,
    pub local: IpAddr,
    /// The interface to a peer on the link.
    pub device: u32,
    pub hops: Hops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hops {
    /// The peer is on the link (RFC 5881).
    One,
    /// It is this number of routers away, or less (RFC 5883).
    Several(u8),
}

impl Hops {
    pub fn port(self) -> u16 {
        match self {
            Self::One => Bfd::ONE_HOP,
            Self::Several(_) => Bfd::SEVERAL_HOPS,
        }
    }

    /// Packets are sent with 255.
    pub fn min_hop_limit(self) -> u8 {
        match self {
            Self::One => u8::MAX,
            Self::Several(hops) => u8::MAX.saturating_sub(hops).saturating_add(1),
        }
    }
}

/// A session that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub path: Path,
    pub config: Config,
}
