//! Addresses in the format of packets and maps.

use core::fmt::Debug;
use core::hash::{Hash, Hasher};

use crate::layout::Peer;

/// An IPv4 or IPv6 address: octets in network order.
pub trait Address:
    Copy
    + Debug
    + PartialEq
    + Eq
    + Hash
    + Ord
    + Default
    + Into<core::net::IpAddr>
    + Into<Peer>
    + 'static
{
    /// The address as 64-bit words for hashing; IPv4 fills the low half of the first.
    fn words(self) -> [u64; 2];

    /// The one's complement sum of the address's 16-bit words, not yet folded.
    fn sum(self) -> u64;

    /// An address of this family.
    fn of(address: core::net::IpAddr) -> Option<Self>;

    /// The unspecified address, under which NodePort frontends are stored.
    fn unspecified() -> Self {
        Self::default()
    }

    /// The address by which a host connects to itself.
    fn loopback() -> Self;
}

#[repr(C, align(4))]
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Default)]
pub struct Address4 {
    pub octets: [u8; 4],
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Default)]
pub struct Address6 {
    pub octets: [u8; 16],
}

const _: () = assert!(size_of::<Address4>() == 4);
const _: () = assert!(size_of::<Address6>() == 16);

impl Address4 {
    #[inline(always)]
    fn word(self) -> u32 {
        u32::from_ne_bytes(self.octets)
    }
}

impl Address6 {
    #[inline(always)]
    fn halves(self) -> [u64; 2] {
        // SAFETY: the same size, and any bits are a number. Combining the words from octets would
        // give the same, but makes the compiler copy octets through the stack, of which BPF has 512
        // bytes.
        unsafe { core::mem::transmute::<[u8; 16], [u64; 2]>(self.octets) }
    }
}

// Equality by words: comparing arrays of octets would call `bcmp`, which compares byte by byte on
// BPF.
impl PartialEq for Address4 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.word() == other.word()
    }
}

impl PartialEq for Address6 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.halves(), other.halves());
        (a[0] ^ b[0]) | (a[1] ^ b[1]) == 0
    }
}

impl Hash for Address4 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
    }
}

impl Hash for Address6 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
    }
}

impl Address for Address4 {
    #[inline(always)]
    fn loopback() -> Self {
        Self { octets: [127, 0, 0, 1] }
    }

    fn of(address: core::net::IpAddr) -> Option<Self> {
        match address {
            core::net::IpAddr::V4(address) => Some(address.into()),
            _ => None,
        }
    }

    #[inline(always)]
    fn words(self) -> [u64; 2] {
        [u64::from(self.word()), 0]
    }

    #[inline(always)]
    fn sum(self) -> u64 {
        u64::from(self.word())
    }
}

impl Address for Address6 {
    #[inline(always)]
    fn loopback() -> Self {
        Self { octets: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] }
    }

    fn of(address: core::net::IpAddr) -> Option<Self> {
        match address {
            core::net::IpAddr::V6(address) => Some(address.into()),
            _ => None,
        }
    }

    #[inline(always)]
    fn words(self) -> [u64; 2] {
        self.halves()
    }

    #[inline(always)]
    fn sum(self) -> u64 {
        let [first, second] = self.halves();
        // Four 32-bit words cannot overflow 64 bits.
        (first & 0xffff_ffff) + (first >> 32) + (second & 0xffff_ffff) + (second >> 32)
    }
}

impl From<[u8; 4]> for Address4 {
    #[inline(always)]
    fn from(octets: [u8; 4]) -> Self {
        Self { octets }
    }
}

impl From<[u8; 16]> for Address6 {
    #[inline(always)]
    fn from(octets: [u8; 16]) -> Self {
        Self { octets }
    }
}

impl From<Address4> for [u8; 4] {
    #[inline(always)]
    fn from(address: Address4) -> Self {
        address.octets
    }
}

impl From<Address6> for [u8; 16] {
    #[inline(always)]
    fn from(address: Address6) -> Self {
        address.octets
    }
}

impl From<core::net::Ipv4Addr> for Address4 {
    fn from(address: core::net::Ipv4Addr) -> Self {
        address.octets().into()
    }
}

impl From<core::net::Ipv6Addr> for Address6 {
    fn from(address: core::net::Ipv6Addr) -> Self {
        address.octets().into()
    }
}

impl From<Address4> for core::net::IpAddr {
    fn from(address: Address4) -> Self {
        core::net::Ipv4Addr::from(address.octets).into()
    }
}

impl From<Address6> for core::net::IpAddr {
    fn from(address: Address6) -> Self {
        core::net::Ipv6Addr::from(address.octets).into()
    }
}

impl Debug for Address4 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", core::net::Ipv4Addr::from(self.octets))
    }
}

impl Debug for Address6 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", core::net::Ipv6Addr::from(self.octets))
    }
}
