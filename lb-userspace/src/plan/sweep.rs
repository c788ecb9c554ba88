//! A pass over the flow tables: ends datagram flows whose backend has left their service port, and
//! finds out which bits of destinations flows still need.
//!
//! Both read all flows of an address family. So a plan has one step for both, and only for the
//! families that it changes.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::Bitmap;

use crate::model::AddressFamily;

/// The backends to which datagram flows of some service ports may lead, all by index. Flows of
/// other service ports stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagrams(BTreeMap<u32, BTreeSet<u32>>);

impl Datagrams {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn may_stay(&self, service_port: u32, backend: u32) -> bool {
        self.0.get(&service_port).is_none_or(|backends| backends.contains(&backend))
    }
}

/// One pass over all flows of some families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Which datagram flows may stay; all others of these service ports are ended.
    pub datagrams: Datagrams,
    /// Bits of destinations to clear. Those that flows still need stay until the next sweep.
    pub bits: BTreeSet<Bitmap>,
    pub families: BTreeSet<AddressFamily>,
}

impl Sweep {
    /// Clears bits of either family.
    pub fn of_bits(bits: impl IntoIterator<Item = Bitmap>) -> Self {
        let bits = bits.into_iter().collect();
        Self { bits, families: AddressFamily::ALL.into(), ..Self::default() }
    }

    pub(super) fn clear_bit(&mut self, bit: Bitmap, families: &[AddressFamily]) {
        self.bits.insert(bit);
        self.families.extend(families);
    }

    /// Ends the datagram flows of a service port that lead to other backends.
    pub(super) fn restrict(
        &mut self,
        service_port: u32,
        to: BTreeSet<u32>,
        families: &[AddressFamily],
    ) {
        self.datagrams.0.insert(service_port, to);
        self.families.extend(families);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty() && self.datagrams.is_empty()
    }
}
