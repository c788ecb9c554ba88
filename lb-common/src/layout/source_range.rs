//! Clients that may connect to a restricted service port.

use crate::family::{Family, V4, V6};

/// A prefix of clients that may use a restricted service port, as in the trie behind the prefix
/// length: the index of the service port in network order, then the address.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRange<F: Family> {
    pub service_port: [u8; 4],
    pub octets: F::Octets,
}

/// The bits of a prefix that hold the service port.
pub const SERVICE_PORT_BITS: u32 = 32;

const _: () = {
    assert!(size_of::<SourceRange<V4>>() == 8);
    assert!(size_of::<SourceRange<V6>>() == 20);
};
