//! Addresses that this node announces on its links, and other machines that use them, too.

use core::net::IpAddr;

use super::Peer;
use crate::family::{Address, Address6};

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
///
/// CPUs write the words without a lock, and the agent may remove the entry meanwhile, so that its
/// memory becomes that of another address. The seal is a checksum over the address and the other
/// words: a claim counts only as one CPU wrote it, for this address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastClaim {
    /// In nanoseconds of CLOCK_BOOTTIME; 0 if no claim was seen.
    pub time: u64,
    pub claimant: Claimant,
    pub seal: u64,
}

impl LastClaim {
    #[inline(always)]
    pub fn new(at: &AnnouncedAddress, link_address: [u8; 6], time: u64) -> Self {
        let claimant = Claimant { link_address, reserved: [0; 2] };
        Self { time, claimant, seal: seal(at, claimant, time) }
    }

    /// Whether it is a whole claim to this address.
    pub fn is_to(&self, at: &AnnouncedAddress) -> bool {
        self.time != 0 && self.seal == seal(at, self.claimant, self.time)
    }
}

#[inline(always)]
fn seal(at: &AnnouncedAddress, claimant: Claimant, time: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let [first, second] = at.address.words();
    let words = [first, second, at.device.into(), claimant.to_word(), time];
    let mut seal = ODD;
    for word in words {
        seal = (seal ^ word).wrapping_mul(ODD);
        seal ^= seal >> 32;
    }
    seal
}

/// A link-layer address as one word, so that it is never a mixture of two.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    pub link_address: [u8; 6],
    pub reserved: [u8; 2],
}

impl Claimant {
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        // SAFETY: the same size, and any bits are a number. As with addresses, combining the octets would
        // make the compiler copy them through the stack.
        unsafe { core::mem::transmute::<Self, u64>(self) }
    }
}

/// Defines the events that are counted, their numbers and their names from one list.
macro_rules! neighbour_events {
    ($($(#[$about:meta])* $event:ident $name:literal)*) => {
        /// What happened to requests about the addresses of load balancers: ARP, neighbour discovery and ICMP echo.
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
    /// An ICMP echo request was answered.
    Echo "echo_answered"
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<AnnouncedAddress>() == 24);
    assert!(offset_of!(AnnouncedAddress, device) == 16);
    assert!(size_of::<Announced>() == 16);
    assert!(size_of::<LastClaim>() == 24);
    assert!(offset_of!(LastClaim, claimant) == 8);
    assert!(offset_of!(LastClaim, seal) == 16);
};

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::family::Address4;

    fn address(device: u32, last: u8) -> AnnouncedAddress {
        AnnouncedAddress::new(device, Address4::from(Ipv4Addr::new(192, 0, 2, last).octets()))
    }

    /// Two CPUs write at once, and the memory of the entry may have become that of another address.
    #[test]
    fn a_claim_counts_only_as_it_was_written_and_for_its_address() {
        let here = address(2, 1);
        let late = LastClaim::new(&here, [2, 0, 0, 0, 0, 8], 7_000_001);
        for at in [here, address(2, 9), address(3, 1)] {
            let other = LastClaim::new(&at, [2, 0, 0, 0, 0, 7], 7_000_000);
            assert_eq!(other.is_to(&here), at == here);
            for mixture in 1..7 {
                let of = |word: u32| if mixture >> word & 1 == 0 { late } else { other };
                let mixed =
                    LastClaim { time: of(0).time, claimant: of(1).claimant, seal: of(2).seal };
                assert!(!mixed.is_to(&here), "{mixed:?}");
            }
        }
        assert!(
            late.is_to(&here) && !LastClaim::default().is_to(&here),
            "the latter: none was seen"
        );
    }
}
