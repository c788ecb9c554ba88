//! Queries to the kernel's routing tables, and their results.

use crate::family::Family;

/// A query to the routing tables.
pub struct Query<F: Family> {
    pub to: F::Address,
    pub from: F::Address,
    pub protocol: u8,
    /// Length of the packet from its IP header on.
    pub length: u32,
}

/// An interface, and the link-layer address of the next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NextHop {
    pub device: u32,
    pub neighbour: [u8; 6],
}

/// The result of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `mtu`: of the route. It may be smaller than that of the interface.
    Known {
        next: NextHop,
        mtu: u32,
    },
    /// The interface is known, the neighbour's link-layer address is not resolved.
    NoNeighbour(u32),
    /// Only packets up to this length fit.
    TooBig(u32),
    None,
}

impl NextHop {
    /// As one word, as flow entries store it; 0 if the interface index does not fit.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        let [a, b, c, d, e, f] = self.neighbour;
        let word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        if self.device < 1 << 16 { word | u64::from(self.device) << 48 } else { 0 }
    }

    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        let [a, b, c, d, e, f, ..] = word.to_le_bytes();
        Self { device: (word >> 48) as u32, neighbour: [a, b, c, d, e, f] }
    }
}
