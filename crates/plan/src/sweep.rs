//! A pass over the flow tables: ends datagram flows whose backend or frontend has left their service
//! port, also those of sockets, and finds out which bits of destinations flows still need.
//!
//! Both read all flows of an address family. So a plan has one step for both, and only for the
//! families that it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use lb_common::family::Family;
use lb_common::layout::{Bitmap, Flow, SocketFlow};
use lb_rules::model::AddressFamily;

/// What a sweep needs to know of a flow of datagrams. Service port and backend by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatagramFlow {
    pub service_port: u32,
    pub backend: u32,
    /// As the client addresses it: also a NodePort has an address here.
    pub frontend: SocketAddr,
}

impl<F: Family> From<&Flow<F>> for DatagramFlow {
    fn from(flow: &Flow<F>) -> Self {
        Self {
            service_port: flow.service_port,
            backend: flow.backend_index,
            frontend: SocketAddr::new(flow.frontend.into(), flow.frontend_port),
        }
    }
}

impl<F: Family> From<&SocketFlow<F>> for DatagramFlow {
    fn from(flow: &SocketFlow<F>) -> Self {
        Self {
            service_port: flow.service_port,
            backend: flow.backend_index,
            frontend: SocketAddr::new(flow.frontend.into(), flow.frontend_port),
        }
    }
}

/// What flows of one service port may use. NodePorts have the unspecified address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// By index.
    pub backends: BTreeSet<u32>,
    pub frontends: BTreeSet<SocketAddr>,
}

impl Allowed {
    pub fn allows(&self, flow: &DatagramFlow) -> bool {
        let any = AddressFamily::of(&flow.frontend.ip()).unspecified();
        let node_port = SocketAddr::new(any, flow.frontend.port());
        self.backends.contains(&flow.backend)
            && (self.frontends.contains(&flow.frontend) || self.frontends.contains(&node_port))
    }
}

/// What datagram flows of some service ports may use, by family and index. Flows of other service ports
/// stay, also those of the other family that an earlier owner of the index has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagrams(BTreeMap<(AddressFamily, u32), Allowed>);

impl Datagrams {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds restrictions, which replace earlier ones of the same service ports.
    pub fn add(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    pub fn may_stay(&self, flow: &DatagramFlow) -> bool {
        let family = AddressFamily::of(&flow.frontend.ip());
        self.0.get(&(family, flow.service_port)).is_none_or(|allowed| allowed.allows(flow))
    }
}

/// One pass over all flows of some families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Which datagram flows may stay; all others of these service ports are ended.
    pub datagrams: Datagrams,
    /// Bits of destinations to clear. Those that flows still need stay until the next sweep.
    pub bits: BTreeSet<Bitmap>,
    pub families: BTreeSet<AddressFamily>,
}

impl Sweep {
    /// Clears bits of either family.
    pub fn of_bits(bits: impl IntoIterator<Item = Bitmap>) -> Self {
        let bits = bits.into_iter().collect();
        Self { bits, families: AddressFamily::ALL.into(), ..Self::default() }
    }

    pub(super) fn clear_bit(&mut self, bit: Bitmap, families: &[AddressFamily]) {
        self.bits.insert(bit);
        self.families.extend(families);
    }

    /// Ends the datagram flows of a service port that use anything else.
    pub fn restrict(&mut self, service_port: u32, to: Allowed, families: &[AddressFamily]) {
        for family in families {
            self.datagrams.0.insert((*family, service_port), to.clone());
        }
        self.families.extend(families);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty() && self.datagrams.is_empty()
    }
}
