use crate::family::{Address4, Address6};

/// A node of the cluster by one of its addresses: what comes from there through a tunnel is taken
/// for what a client has sent. IPv4 addresses are in their IPv6 form.
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

/// The elements of `TUNNEL_KEYS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKey {
    /// Sent and accepted. While it is 0, tunnels carry no key.
    Current = 0,
    /// Accepted as well: the next or the last one, while keys are changed.
    Other = 1,
}

impl TunnelKey {
    pub const COUNT: usize = 2;
}

/// By what a packet in a tunnel names the backend that its node is to hand it to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelTarget {
    pub service_port: u32,
    /// Of the backend, by [`crate::hash::backend_tag`].
    pub tag: u32,
}

const _: () = {
    assert!(size_of::<Peer>() == 16);
    assert!(size_of::<TunnelTarget>() == 8);
};
