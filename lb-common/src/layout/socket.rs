//! Connections that were translated at a socket.

use crate::family::{Address4, Address6, Family, V4, V6};

/// The network namespace whose sockets are handled, and the client addresses of its processes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The cookie of this node's own network namespace; 0, which no namespace has: no sockets. Pods
    /// have other namespaces, and are served at their interfaces.
    pub network_namespace: u64,
    /// This node's own addresses; unspecified if it has none.
    pub address4: Address4,
    /// Families in which processes reach NodePorts at the loopback address: a sum of `LOOPBACK4` and `LOOPBACK6`.
    pub loopback: u32,
    pub address6: Address6,
}

impl Host {
    pub const LOOPBACK4: u32 = 1;
    pub const LOOPBACK6: u32 = 2;
}

/// A connection that was translated at the socket of a process on this node.
///
/// The kernel identifies sockets by cookies, which it never reuses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFlow<F: Family> {
    pub frontend: F::Address,
    pub backend: F::Address,
    pub frontend_port: u16,
    pub backend_port: u16,
    pub service_port: u32,
    pub backend_index: u32,
    pub backend_generation: u32,
}

/// A peer of an unconnected socket.
///
/// Each flow has two entries: datagrams that it sends are found by the frontend, those that it
/// receives by the backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketEnd<F: Family> {
    pub cookie: u64,
    pub address: F::Address,
    pub port: u16,
    /// A [`Side`].
    pub side: u8,
    pub reserved: u8,
    /// Fills IPv6's key to whole 64-bit words; nothing for IPv4.
    pub padding: F::Padding,
}

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Frontend = 0,
    Backend = 1,
}

impl<F: Family> SocketEnd<F> {
    #[inline(always)]
    pub fn new(cookie: u64, address: F::Address, port: u16, side: Side) -> Self {
        let padding = F::Padding::default();
        Self { cookie, address, port, side: side as u8, reserved: 0, padding }
    }
}

// Not derived: that would require the family, a marker type, to implement `Hash`.
impl<F: Family> core::hash::Hash for SocketEnd<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.cookie, self.address, self.port, self.side).hash(state);
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Host>() == 32);
    assert!(offset_of!(Host, address6) == 16);
    assert!(size_of::<SocketFlow<V4>>() == 24);
    assert!(offset_of!(SocketFlow<V4>, service_port) == 12);
    assert!(size_of::<SocketFlow<V6>>() == 48);
    assert!(offset_of!(SocketFlow<V6>, service_port) == 36);
    assert!(size_of::<SocketEnd<V4>>() == 16);
    assert!(offset_of!(SocketEnd<V4>, port) == 12);
    assert!(size_of::<SocketEnd<V6>>() == 32);
    assert!(offset_of!(SocketEnd<V6>, port) == 24);
};
