//! Connections that are forwarded without an entry in the flow table.

use crate::family::{Family, V4, V6};

/// Addresses and ports of a reply to a packet that was forwarded without an entry in the flow
/// table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyKey<F: Family> {
    pub backend: F::Address,
    pub client: F::Address,
    pub backend_port: u16,
    pub client_port: u16,
    pub protocol: u8,
    pub reserved: [u8; 3],
}

// Not derived: that would require the family, a marker type, to implement `Hash`.
impl<F: Family> core::hash::Hash for ReplyKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.backend, self.client, self.backend_port, self.client_port, self.protocol).hash(state);
    }
}

/// The frontend that the client uses, and the service port that its packets are counted for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untracked<F: Family> {
    pub frontend: F::Address,
    pub service_port: u32,
    pub backend_index: u32,
    pub frontend_port: u16,
    pub reserved: [u8; 2],
    pub padding: F::Padding,
}

const _: () = {
    assert!(size_of::<ReplyKey<V4>>() == 16);
    assert!(size_of::<ReplyKey<V6>>() == 40);
    assert!(size_of::<Untracked<V4>>() == 16);
    assert!(size_of::<Untracked<V6>>() == 32);
};
