//! Addresses that this node announces on its links, and other machines that use them, too.

use core::net::IpAddr;

use super::Peer;
use crate::family::Address6;

/// An address on an interface: the key of announcements and claims.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AnnouncedAddress {
    /// IPv4 addresses are IPv4-mapped.
    pub address: Address6,
    /// The interface's index.
    pub device: u32,
    pub reserved: u32,
}

impl AnnouncedAddress {
    #[inline(always)]
    pub fn new(device: u32, address: impl Into<Peer>) -> Self {
        Self { address: address.into().address, device, reserved: 0 }
    }

    pub fn ip(&self) -> IpAddr {
        Peer { address: self.address }.ip()
    }
}

/// ARP requests and neighbour solicitations for the address are answered until the deadline.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// In nanoseconds of CLOCK_BOOTTIME, which also advances while the machine is suspended. 64
    /// bits, so that an entry that was left behind never becomes valid again.
    pub deadline: u64,
    /// The epoch of the announcement, for the agent; no program reads it.
    pub epoch: u32,
    pub flags: u32,
}

/// The last machine that was seen to use the address. The agent adds the entries that it wants to
/// watch, so that no sender can fill the map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// In nanoseconds of CLOCK_BOOTTIME; 0 if no claim was seen. Written last.
    pub time: u64,
    pub claimant: Claimant,
}

/// A link-layer address as one word, so that it is never a mixture of two.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    pub link_address: [u8; 6],
    pub reserved: [u8; 2],
}

/// Defines the events that are counted, their numbers and their names from one list.
macro_rules! neighbour_events {
    ($($(#[$about:meta])* $event:ident $name:literal)*) => {
        /// What happened to ARP and neighbour discovery packets about announced addresses.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum NeighbourEvent {
            $($(#[$about])* $event,)*
        }

        impl NeighbourEvent {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$event),*];
            pub const COUNT: u32 = Self::ALL.len() as u32;

            /// The name in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$event => $name,)*
                }
            }
        }
    };
}

neighbour_events! {
    /// An ARP request was answered.
    Arp "arp_answered"
    /// A neighbour solicitation was answered.
    Ndp "ndp_answered"
    /// A request was left to the stack, because the announcement's deadline has passed.
    Expired "expired"
    /// Another machine uses an address that the agent watches.
    Claimed "claimed"
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<AnnouncedAddress>() == 24);
    assert!(offset_of!(AnnouncedAddress, device) == 16);
    assert!(size_of::<Announced>() == 16);
    assert!(size_of::<Claim>() == 16);
    assert!(offset_of!(Claim, claimant) == 8);
};
