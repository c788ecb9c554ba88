//! ICMP errors that senders get.

/// The ICMP error that a packet's sender gets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RejectionKind,
    /// The MTU, for packets that are too big.
    pub mtu: u32,
}

#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionKind(pub u32);

impl RejectionKind {
    /// No backend serves the port.
    pub const PORT_UNREACHABLE: Self = Self(0);
    pub const TOO_BIG: Self = Self(1);
    pub const HOP_LIMIT: Self = Self(2);
}

impl Rejection {
    pub const PORT_UNREACHABLE: Self = Self { kind: RejectionKind::PORT_UNREACHABLE, mtu: 0 };
    pub const HOP_LIMIT: Self = Self { kind: RejectionKind::HOP_LIMIT, mtu: 0 };

    #[inline(always)]
    pub fn too_big(mtu: u32) -> Self {
        Self { kind: RejectionKind::TOO_BIG, mtu }
    }
}
