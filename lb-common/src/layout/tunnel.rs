//! Tunnels: nodes, keys and targets.

use core::net::IpAddr;

use crate::family::{Address4, Address6};

/// An address of a node of the cluster: tunnelled packets from there are treated as packets of
/// clients. IPv4 addresses are IPv4-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    pub address: Address6,
}

impl From<Address4> for Peer {
    #[inline(always)]
    fn from(address: Address4) -> Self {
        let [a, b, c, d] = address.octets;
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d];
        Self { address: mapped.into() }
    }
}

impl From<Address6> for Peer {
    #[inline(always)]
    fn from(address: Address6) -> Self {
        Self { address }
    }
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Address4::from(address).into(),
            IpAddr::V6(address) => Address6::from(address).into(),
        }
    }
}

impl Peer {
    pub fn ip(&self) -> IpAddr {
        let address: IpAddr = self.address.into();
        address.to_canonical()
    }
}

/// The values of `TUNNEL_PEERS`: what a node's probes have shown.
pub struct TunnelPeer;

impl TunnelPeer {
    /// The node takes packets out of tunnels.
    pub const DECAPSULATES: u32 = 1;
    /// The node also returns packets of connections that it does not know, if it is asked.
    pub const RETURNS: u32 = 2;
}

/// The elements of `TUNNEL_KEYS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKey {
    /// Sent and accepted. While it is 0, tunnels carry no key.
    Current = 0,
    /// Accepted as well: the next or the previous one, during key rotation.
    Other = 1,
}

impl TunnelKey {
    pub const COUNT: usize = 2;
}

/// The tag by which a tunnelled packet names its backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelTarget {
    pub service_port: u32,
    /// The backend's tag ([`crate::hash::backend_tag`]).
    pub tag: u32,
}

const _: () = {
    assert!(size_of::<Peer>() == 16);
    assert!(size_of::<TunnelTarget>() == 8);
};
