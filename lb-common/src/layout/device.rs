//! Network interfaces, and the epoch of the network.

use crate::family::{Address4, Address6};

/// An interface through which packets are sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The SNAT address for backends behind the interface; unspecified if there is none.
    pub address6: Address6,
    pub address4: Address4,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    pub link_address: [u8; 6],
    /// [`Device::REDIRECT`], [`Device::TRANSMIT`].
    pub flags: u8,
    pub reserved: u8,
}

impl Device {
    /// XDP may send packets through it that arrived on another interface.
    pub const REDIRECT: u8 = 1;
    /// XDP may send packets back through it. A veth whose other end does not poll accepts such
    /// packets and drops them.
    pub const TRANSMIT: u8 = 2;
}

/// The network epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkEpoch {
    /// Changes with every change of a route, neighbour, address or link: next hops that were
    /// resolved in an earlier epoch are invalid.
    pub epoch: u32,
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<Device>() == 32);
    assert!(size_of::<NetworkEpoch>() == 8);
};
