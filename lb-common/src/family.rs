//! The two address families as types. Everything else is generic over [`Family`].

use core::fmt::Debug;
use core::hash::Hash;

pub use crate::address::{Address, Address4, Address6};
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
    type Octets: Copy + Debug + PartialEq + Eq + Hash + From<Self::Address>;

    /// This family's address of an interface.
    fn address_of(device: &Device) -> Self::Address;

    /// The socket address family (`AF_INET`, `AF_INET6`).
    const SOCKET_FAMILY: u8;

    /// The EtherType of this family, in host order.
    const ETHER_TYPE: u16;
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
