//! What identifies a frontend, a backend and a pool, from plan to plan and in the kernel.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use lb_common::family::{Address, Address4, Address6};
use lb_common::hash::{backend_identity, backend_tag};
use lb_common::layout;
use lb_rules::model::{Backend, ServicePort};

/// The frontend that a client connects to, in either address family: [`Planner`](crate::Planner) gives it to one service
/// port, and [`layout::FrontendKey`] is its key in the map of its family. NodePorts have the unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: u8,
}

impl FrontendKey {
    pub fn new(address: IpAddr, port: u16, protocol: u8) -> Self {
        Self { address, port, protocol }
    }

    /// The key of the entry of an address itself.
    pub fn of_address(address: IpAddr) -> Self {
        Self::new(address, 0, 0)
    }

    pub fn is_node_port(&self) -> bool {
        self.address.is_unspecified()
    }
}

impl Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_node_port() {
            write!(f, "node port {}", self.port)
        } else {
            SocketAddr::new(self.address, self.port).fmt(f)
        }
    }
}

/// The backend that an endpoint is, in either address family. All pools share it: the planner gives it an index, which
/// is what [`layout::Backend`] is found by, and a generation. Never a frontend, though one may have the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: u8,
}

impl BackendKey {
    pub fn new(address: IpAddr, port: u16, protocol: u8) -> Self {
        Self { address, port, protocol }
    }

    pub fn of(backend: &Backend, protocol: u8) -> Self {
        Self::new(backend.address, backend.port, protocol)
    }

    /// The entry in the kernel's table.
    pub fn entry<A: Address>(
        &self,
        address: A,
        state: BackendState,
        generation: u32,
    ) -> layout::Backend<A> {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let flags = flag(state.local, layout::Backend::<A>::LOCAL)
            | flag(state.draining, layout::Backend::<A>::DRAINING);
        let (port, protocol) = (self.port, self.protocol);
        let node = state.node.and_then(A::of).unwrap_or_default();
        layout::Backend { address, node, generation, port, protocol, flags }
    }

    /// The tag by which packets in tunnels name it.
    pub fn tag(&self) -> u16 {
        match self.address {
            IpAddr::V4(address) => backend_tag(Address4::from(address), self.port),
            IpAddr::V6(address) => backend_tag(Address6::from(address), self.port),
        }
    }

    /// The input of its Maglev permutation: the same on every node.
    pub fn identity(&self) -> u64 {
        match self.address {
            IpAddr::V4(address) => backend_identity(Address4::from(address), self.port),
            IpAddr::V6(address) => backend_identity(Address6::from(address), self.port),
        }
    }
}

impl Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// A backend's flags and node, as far as the kernel's entry contains them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendState {
    /// On this node.
    pub local: bool,
    /// In no pool: it only keeps its existing connections.
    pub draining: bool,
    /// The address of its node, if that is another one and known.
    pub node: Option<IpAddr>,
}

impl BackendState {
    /// How a pool describes its member. As in the kernel's entry, the node's address has the backend's
    /// address family.
    pub(crate) fn in_pool(backend: &Backend) -> Self {
        let is_of_family = |node: &IpAddr| node.is_ipv4() == backend.address.is_ipv4();
        let node = backend.node.filter(is_of_family).filter(|node| !node.is_unspecified());
        Self { local: backend.local, draining: false, node }
    }

    pub fn of<A: Address>(entry: &layout::Backend<A>) -> Self {
        let node = Some(entry.node).filter(|node| *node != A::default()).map(Into::into);
        Self { local: entry.is_local(), draining: entry.is_draining(), node }
    }

    /// `index`: the backend's.
    pub fn node_of(self, index: u32) -> BackendNode {
        match self.node {
            _ if self.local => BackendNode::ThisNode,
            Some(node) => BackendNode::OtherNode(node),
            None => BackendNode::Unknown(index),
        }
    }
}

/// The node of a backend. Two are equal only if both are known to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendNode {
    ThisNode,
    /// Its address.
    OtherNode(IpAddr),
    /// The backend's index.
    Unknown(u32),
}

/// The backends that a pool may contain: of the cluster, or of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster = 0,
    Local = 1,
}

impl Scope {
    pub const BOTH: [Self; 2] = [Self::Cluster, Self::Local];

    /// Every service port has one pool for each scope, at fixed indexes.
    pub fn pool_index(self, service_port: u32) -> u32 {
        service_port * 2 + self as u32
    }

    /// The service port of a pool.
    pub fn service_port_of(pool_index: u32) -> u32 {
        pool_index / 2
    }

    pub(super) fn members(self, service_port: &ServicePort) -> &BTreeSet<Backend> {
        match self {
            Self::Cluster => &service_port.cluster,
            Self::Local => &service_port.local,
        }
    }

    pub(super) fn members_mut(self, service_port: &mut ServicePort) -> &mut BTreeSet<Backend> {
        match self {
            Self::Cluster => &mut service_port.cluster,
            Self::Local => &mut service_port.local,
        }
    }
}

impl Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster pool",
            Self::Local => "local pool",
        })
    }
}
