//! What is said about a prefix.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::community::Communities;

/// What the announcements of a prefix carry beside its next hop. The AS path follows from the session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteAttributes {
    /// Only for sessions within one autonomous system; 100 if it is not set.
    pub local_preference: Option<u32>,
    pub communities: Communities,
    /// Of the link-bandwidth extended community, in octets a second.
    pub bandwidth: Option<f32>,
}

impl RouteAttributes {
    /// Asks for other routes to be preferred, before these are withdrawn (RFC 8326).
    pub(crate) fn for_shutdown(&self) -> Self {
        Self {
            local_preference: Some(0),
            communities: self.communities.clone().with_graceful_shutdown(),
            bandwidth: self.bandwidth,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    Ipv4(Ipv4Addr),
    /// For IPv6, and for IPv4 prefixes if the peer can do that (RFC 8950).
    Ipv6 {
        /// A link-local address if there is no global one, as on unnumbered links.
        global: Ipv6Addr,
        /// In addition, if the peer is on the same link (RFC 2545).
        link_local: Option<Ipv6Addr>,
    },
}
