//! What a session of BFD is between, and how it is configured.

use std::net::IpAddr;

use lb_bfd::session::BfdConfig;
use lb_common::header::Bfd;
use lb_common::layout::BfdSession;

/// What a session is between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredEnds {
    pub peer: IpAddr,
    pub local: IpAddr,
    /// The interface to a peer on the link.
    pub device: u32,
    pub hops: HopLimit,
}

impl MonitoredEnds {
    /// The only interface on which the peer's packets arrive; 0: any.
    pub(crate) fn only_device(&self) -> u32 {
        if self.hops == HopLimit::One { self.device } else { 0 }
    }

    /// Whether a session in the kernel is between the same two. Each interface has link-local
    /// addresses of its own.
    pub(crate) fn has_ends_of(&self, entry: &BfdSession) -> bool {
        let is_link_local = matches!(self.peer, IpAddr::V6(six) if six.is_unicast_link_local());
        entry.peer == self.peer.into()
            && entry.local == self.local.into()
            && entry.destination_port == self.hops.port()
            && (!is_link_local || entry.device == self.only_device())
    }

    /// Whether it also takes the same packets.
    pub(crate) fn takes_packets_of(&self, entry: &BfdSession) -> bool {
        self.has_ends_of(entry)
            && entry.device == self.only_device()
            && entry.min_hop_limit == self.hops.min_hop_limit()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopLimit {
    /// The peer is on the link (RFC 5881).
    One,
    /// The peer is this number of routers away, or less (RFC 5883).
    Several(u8),
}

impl HopLimit {
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
pub struct WantedSession {
    pub path: MonitoredEnds,
    pub config: BfdConfig,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(peer: &str, local: &str, device: u32, hops: HopLimit) -> MonitoredEnds {
        MonitoredEnds { peer: peer.parse().unwrap(), local: local.parse().unwrap(), device, hops }
    }

    fn entry(path: &MonitoredEnds) -> BfdSession {
        BfdSession {
            deadline: 0,
            peer: path.peer.into(),
            local: path.local.into(),
            expected: Bfd::default(),
            answer: Bfd::default(),
            device: path.only_device(),
            source_port: 50_000,
            destination_port: path.hops.port(),
            min_hop_limit: path.hops.min_hop_limit(),
            reserved: [0; 7],
        }
    }

    /// Many routers have fe80::1 on each interface.
    #[test]
    fn link_local_addresses_of_two_interfaces_differ() {
        let [one, other] = [7, 8].map(|device| path("fe80::1", "fe80::2", device, HopLimit::One));
        assert!(one.has_ends_of(&entry(&one)) && one.takes_packets_of(&entry(&one)));
        assert!(!one.has_ends_of(&entry(&other)));
    }

    /// What an earlier agent has left must not answer for the session beside a new one.
    #[test]
    fn a_session_between_the_same_addresses_is_replaced_if_it_takes_other_packets() {
        let [one, other] =
            [7, 8].map(|device| path("192.0.2.1", "192.0.2.2", device, HopLimit::One));
        assert!(one.has_ends_of(&entry(&other)) && !one.takes_packets_of(&entry(&other)));
        let [near, far] =
            [1, 3].map(|hops| path("192.0.2.1", "192.0.2.2", 7, HopLimit::Several(hops)));
        assert!(near.has_ends_of(&entry(&far)) && !near.takes_packets_of(&entry(&far)));
        assert!(!near.has_ends_of(&entry(&one)), "another port");
    }
}
