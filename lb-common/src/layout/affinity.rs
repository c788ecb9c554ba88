//! Session affinity, by client and by pool.

use super::Ticks;
use crate::family::{Family, V4, V6};

/// The key of session affinity: client and service port, whatever frontend the client uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityKey<F: Family> {
    pub client: F::Address,
    pub service_port: u32,
    pub padding: F::Padding,
}

impl<F: Family> AffinityKey<F> {
    #[inline(always)]
    pub fn new(client: F::Address, service_port: u32) -> Self {
        Self { client, service_port, padding: F::Padding::default() }
    }
}

// Not derived: that would require the family, a marker type, to implement `Hash`.
impl<F: Family> core::hash::Hash for AffinityKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.client, self.service_port).hash(state);
    }
}

/// The backend that a client stays with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    pub backend: u32,
    /// The backend's generation: another generation of the index is another backend.
    pub generation: u32,
    /// When the client last opened a flow.
    pub used: Ticks,
}

/// A member of a pool. Clients with session affinity stay with it while it is a member.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    pub pool: u32,
    pub backend: u32,
}

const _: () = {
    assert!(size_of::<AffinityKey<V4>>() == 8);
    assert!(size_of::<AffinityKey<V6>>() == 24);
    assert!(size_of::<Affinity>() == 12);
    assert!(size_of::<Member>() == 8);
};
