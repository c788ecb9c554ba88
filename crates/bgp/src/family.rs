//! Address families, of unicast routes only.

use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// The subsequent address family identifier of unicast routes.
pub(crate) const SAFI_UNICAST: u8 = 1;

impl Family {
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    pub fn of_prefix(prefix: &IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => Self::Ipv4,
            IpNet::V6(_) => Self::Ipv6,
        }
    }

    /// The address family identifier.
    pub fn afi(self) -> u16 {
        match self {
            Self::Ipv4 => 1,
            Self::Ipv6 => 2,
        }
    }

    /// `None` for others than IPv4 and IPv6 unicast.
    pub(crate) fn of_identifiers(afi: u16, safi: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.afi() == afi && safi == SAFI_UNICAST)
    }

    /// The length of an address in bits.
    pub fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}
