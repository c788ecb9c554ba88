use crate::family::{Family, V4, V6};

/// What a client dials. NodePorts are stored under the unspecified address. The entry of an
/// address with port 0 and protocol 0 says what the address itself is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendKey<F: Family> {
    pub address: F::Address,
    pub port: u16,
    pub protocol: u8,
    pub reserved: u8,
    pub padding: F::Padding,
}

impl<F: Family> FrontendKey<F> {
    #[inline(always)]
    pub fn new(address: F::Address, port: u16, protocol: u8) -> Self {
        Self { address, port, protocol, reserved: 0, padding: F::Padding::default() }
    }
}

// By hand: deriving would ask the family, a mere marker, to be hashable.
impl<F: Family> core::hash::Hash for FrontendKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.address, self.port, self.protocol).hash(state);
    }
}

/// What a frontend leads to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Index into the traffic counters; shared by all frontends of one service port.
    pub service_port: u32,
    /// The pool for clients that this frontend sends anywhere in the cluster.
    pub cluster_pool: u32,
    /// The pool of this node's own backends, for policy `Local`.
    pub local_pool: u32,
    pub kind: u8,
    /// 1 if who dials one of the other kinds from outside gets `local_pool`.
    pub external_local: u8,
    /// 1 if who dials the ClusterIP gets `local_pool`.
    pub internal_local: u8,
    pub reserved: u8,
}

impl Frontend {
    /// The entry of an address of this node; it leads nowhere by itself.
    pub const fn node_address() -> Self {
        Self {
            service_port: 0,
            cluster_pool: 0,
            local_pool: 0,
            kind: FrontendKind::NodeAddress as u8,
            external_local: 0,
            internal_local: 0,
            reserved: 0,
        }
    }
}

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKind {
    ClusterIp = 1,
    NodePort = 2,
    ExternalIp = 3,
    LoadBalancer = 4,
    /// Of the entry with port 0: an address of this node, where NodePorts are open.
    NodeAddress = 5,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<FrontendKey<V4>>() == 8);
    assert!(offset_of!(FrontendKey<V4>, port) == 4);
    assert!(offset_of!(FrontendKey<V4>, protocol) == 6);
    assert!(size_of::<FrontendKey<V6>>() == 24);
    assert!(offset_of!(FrontendKey<V6>, port) == 16);
    assert!(size_of::<Frontend>() == 16);
    assert!(offset_of!(Frontend, kind) == 12);
};
