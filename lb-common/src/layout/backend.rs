//! Backends.

use crate::family::{Family, V4, V6};

/// Where a connection may be sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Backend<A> {
    pub address: A,
    /// The address of its node, if that is another node and known: the end of tunnels to it.
    /// Otherwise unspecified.
    pub node: A,
    /// Changes when the index is reused for another backend. A flow whose generation differs
    /// belongs to a backend that is gone.
    pub generation: u32,
    pub port: u16,
    /// 0 marks an unused entry.
    pub protocol: u8,
    /// [`Backend::LOCAL`], [`Backend::DRAINING`].
    pub flags: u8,
}

/// Index 0 is never used.
pub const NO_BACKEND: u32 = 0;

impl<A> Backend<A> {
    /// The backend runs on this node.
    pub const LOCAL: u8 = 1;
    /// No pool contains it, but its endpoint still exists: connections continue.
    pub const DRAINING: u8 = 2;

    #[inline(always)]
    pub fn is_local(&self) -> bool {
        self.flags & Self::LOCAL != 0
    }

    #[inline(always)]
    pub fn is_draining(&self) -> bool {
        self.flags & Self::DRAINING != 0
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Backend<<V4 as Family>::Address>>() == 16);
    assert!(size_of::<Backend<<V6 as Family>::Address>>() == 40);
    assert!(offset_of!(Backend<<V6 as Family>::Address>, generation) == 32);
};
