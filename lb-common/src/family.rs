//! The two address families as types. Everything else is generic over [`Family`].

use core::fmt::Debug;
use core::hash::{Hash, Hasher};

use crate::header::{Ipv4, Ipv6, NetworkHeader};
use crate::layout::Device;

/// IPv4 or IPv6.
pub trait Family: Copy + Debug + PartialEq + Eq + 'static {
    type Address: Address;
    type Header: NetworkHeader<Address = Self::Address>;
    /// Padding of a record with some addresses to a multiple of their alignment.
    type Padding: Copy + Debug + Default + PartialEq + Eq;
    /// Padding of a flow's entry to whole cache lines.
    type EntryPadding: Copy + Debug + Default + PartialEq + Eq;
    /// An address without alignment.
    type Octets: Copy + Debug + PartialEq + Eq + core::hash::Hash + From<Self::Address>;

    /// This family's address of an interface.
    fn address_of(device: &Device) -> Self::Address;

    /// The socket address family (`AF_INET`, `AF_INET6`).
    const SOCKET_FAMILY: u8;

    /// The EtherType of this family, in host order.
    const ETHER_TYPE: u16;
}

/// An address in the format of packets and maps: octets in network order.
pub trait Address:
    Copy + Debug + PartialEq + Eq + Hash + Ord + Default + Into<core::net::IpAddr> + 'static
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V6;

impl Family for V4 {
    type Address = Address4;
    type Header = Ipv4;
    type Padding = [u32; 0];
    type EntryPadding = [u64; 0];
    type Octets = [u8; 4];
    const ETHER_TYPE: u16 = 0x0800;
    const SOCKET_FAMILY: u8 = 2;

    #[inline(always)]
    fn address_of(device: &Device) -> Address4 {
        device.address4
    }
}

impl Family for V6 {
    type Address = Address6;
    type Header = Ipv6;
    type Padding = [u32; 1];
    type EntryPadding = [u64; 1];
    type Octets = [u8; 16];
    const ETHER_TYPE: u16 = 0x86dd;
    const SOCKET_FAMILY: u8 = 10;

    #[inline(always)]
    fn address_of(device: &Device) -> Address6 {
        device.address6
    }
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
