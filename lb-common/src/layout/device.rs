use crate::family::{Address4, Address6};

/// What packets that leave by a device need to know of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// As whom this node appears behind the device, to backends it forwards to; unspecified if
    /// it has no address to appear as.
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
    /// XDP may send packets out by it that came in by another.
    pub const REDIRECT: u8 = 1;
    /// XDP may send back by it what came in by it. A veth whose other end does not poll takes
    /// such packets and loses them.
    pub const TRANSMIT: u8 = 2;
}

/// What changes as the network does.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkEpoch {
    /// Moves on with every change of a route, neighbour, address or link: ways out that were
    /// resolved in an earlier epoch are void.
    pub epoch: u32,
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<Device>() == 32);
    assert!(size_of::<NetworkEpoch>() == 8);
};
