//! Frontends.

use super::capacity::FRONTEND_CACHE;
use crate::family::{Address, Family, V4, V6};
use crate::hash::mix;

/// The address and port that a client connects to. NodePorts are stored under the unspecified
/// address. The entry of an address with port 0 and protocol 0 describes the address itself: it
/// belongs to this node, or entirely to Services, and all other ports are refused.
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

    /// Its position in the cache.
    #[inline(always)]
    pub fn cache_index(&self) -> u32 {
        const BITS: u32 = FRONTEND_CACHE.trailing_zeros();
        let [first, second] = self.address.words();
        let end = u64::from(self.port) << 40 | u64::from(self.protocol) << 32;
        (mix(first ^ second ^ end) >> (64 - BITS)) as u32
    }
}

// Not derived: that would require the family, a marker type, to implement `Hash`.
impl<F: Family> core::hash::Hash for FrontendKey<F> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.address, self.port, self.protocol).hash(state);
    }
}

/// The value of a frontend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Index into the traffic counters; shared by all frontends of one service port.
    pub service_port: u32,
    /// The pool for clients that this frontend sends anywhere in the cluster.
    pub cluster_pool: u32,
    /// The pool of this node's own backends, for policy `Local`.
    pub local_pool: u32,
    /// Timeout of session affinity after the client's last new connection, in seconds; 0: no
    /// affinity.
    pub affinity: u32,
    pub kind: u8,
    /// 1 if clients outside that use an external address get `local_pool`.
    pub external_local: u8,
    /// 1 if clients of the ClusterIP get `local_pool`.
    pub internal_local: u8,
    /// 1 if only clients in `SOURCE_RANGES` may use it.
    pub restricted: u8,
    /// 1 if there is an endpoint on any node: an empty pool then drops packets instead of rejecting
    /// them.
    pub populated: u8,
    /// A [`Forwarding`].
    pub forwarding: u8,
    /// A [`Silence`], of the entry of a load balancer's address itself.
    pub silence: u8,
    pub reserved: u8,
}

impl Frontend {
    /// The entry of an address itself, with port 0. It has no pool.
    pub const fn of_address(kind: FrontendKind) -> Self {
        Self {
            service_port: 0,
            cluster_pool: 0,
            local_pool: 0,
            affinity: 0,
            kind: kind as u8,
            external_local: 0,
            internal_local: 0,
            restricted: 0,
            populated: 0,
            forwarding: Forwarding::Masquerade as u8,
            silence: Silence::Never as u8,
            reserved: 0,
        }
    }

    /// Whether the address of this entry, with port 0, belongs to Services alone. Without branches: the
    /// verifier would follow the selection once for each kind.
    #[inline(always)]
    pub fn belongs_to_services(&self) -> bool {
        const KINDS: u32 =
            1 << FrontendKind::ClusterIp as u32 | 1 << FrontendKind::LoadBalancer as u32;
        KINDS >> (self.kind & 31) & 1 != 0
    }

    /// Whether clients outside, or clients of a ClusterIP, get the pool of this node's own
    /// backends.
    #[inline(always)]
    pub fn wants_local(&self) -> bool {
        let is_cluster = self.kind == FrontendKind::ClusterIp as u8;
        let local = if is_cluster { self.internal_local } else { self.external_local };
        local != 0
    }

    /// Whether clients connect to frontends of this kind.
    #[inline(always)]
    pub fn leads_somewhere(&self) -> bool {
        let last = FrontendKind::LoadBalancer as u8;
        self.kind.wrapping_sub(FrontendKind::ClusterIp as u8) < last
    }
}

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKind {
    ClusterIp = 1,
    NodePort = 2,
    ExternalIp = 3,
    /// The address of a load balancer. With port 0: one that Millrace assigned.
    LoadBalancer = 4,
    /// An entry with port 0: an address of this node on which NodePorts are open.
    NodeAddress = 5,
}

impl FrontendKind {
    pub const ALL: [Self; 5] =
        [Self::ClusterIp, Self::NodePort, Self::ExternalIp, Self::LoadBalancer, Self::NodeAddress];

    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The kind's name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::ExternalIp => "ExternalIP",
            Self::LoadBalancer => "LoadBalancer",
            Self::NodeAddress => "node address",
        }
    }
}

/// Who gets no answer from a load balancer's address to packets that no port of a Service takes.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Silence {
    /// All clients are answered.
    #[default]
    Never = 0,
    /// Clients outside: only other nodes serve the address (policy `Local`).
    Outside = 1,
    /// All clients.
    Always = 2,
}

/// How clients' packets get to backends on other nodes.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Forwarding {
    /// With SNAT to an address of this node, so that replies come back.
    #[default]
    Masquerade = 0,
    /// Unmodified, in a tunnel to the backend's node, which sends replies directly to the client:
    /// IP in IP.
    Ipip = 1,
    /// Unmodified, in a tunnel to the backend's node: Generic UDP Encapsulation.
    Gue = 2,
    /// As `Gue` to nodes that are known to decapsulate, as `Masquerade` to others.
    Auto = 3,
}

impl Forwarding {
    pub const ALL: [Self; 4] = [Self::Masquerade, Self::Ipip, Self::Gue, Self::Auto];

    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|forwarding| *forwarding as u8 == number)
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<FrontendKey<V4>>() == 8);
    assert!(offset_of!(FrontendKey<V4>, port) == 4);
    assert!(offset_of!(FrontendKey<V4>, protocol) == 6);
    assert!(size_of::<FrontendKey<V6>>() == 24);
    assert!(offset_of!(FrontendKey<V6>, port) == 16);
    assert!(size_of::<Frontend>() == 24);
    assert!(offset_of!(Frontend, kind) == 16);
};

#[cfg(not(feature = "model"))]
const _: () = {
    use super::cache::CacheEntry;
    assert!(size_of::<CacheEntry<FrontendKey<V4>, Frontend>>() == 40);
    assert!(size_of::<CacheEntry<FrontendKey<V6>, Frontend>>() == 56);
};
