//! The ports of a fragmented packet.

use crate::family::{Family, V4, V6};
use crate::layout::Ticks;

/// What all fragments of one packet have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentKey<F: Family> {
    pub source: F::Address,
    pub destination: F::Address,
    pub identification: u32,
    /// The protocol in the fragments' headers. In IPv6, only the first fragment contains further
    /// headers before the transport header.
    pub protocol: u8,
    pub reserved: [u8; 3],
}

// Not derived: that would require the family, a marker type, to implement `Hash`.
impl<F: Family> core::hash::Hash for FragmentKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.source, self.destination, self.identification, self.protocol).hash(state);
    }
}

/// What only the first fragment contains.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    pub source_port: u16,
    pub destination_port: u16,
    /// When it arrived.
    pub seen: Ticks,
    pub protocol: u8,
    pub reserved: [u8; 3],
}

impl Fragment {
    /// How long later fragments are accepted, in seconds: at most as long as hosts reassemble.
    /// Afterwards another packet may have the same identification.
    pub const LIFETIME: u32 = 30;
}

const _: () = {
    assert!(size_of::<FragmentKey<V4>>() == 16);
    assert!(size_of::<FragmentKey<V6>>() == 40);
    assert!(size_of::<Fragment>() == 12);
};
