use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use lb_common::layout::{self, Bitmap, Member, Pool, ServicePortName, TunnelTarget};

use super::adopt::Found;
use super::backends::{BackendKey, Standing};
use super::compact::Lack;
use super::sweep::Sweep;
use super::table::Table;
use crate::model::{Backend, Problem, ServicePort, ServicePortKey};

/// One change of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    SetBackend {
        index: u32,
        backend: BackendKey,
        standing: Standing,
        generation: u32,
    },
    /// The entry stays, unused, and keeps its generation.
    RetireBackend {
        index: u32,
        family: IpAddr,
        generation: u32,
    },
    /// Writes a pool's table into its region.
    WriteTable {
        offset: u32,
        table: Table,
    },
    SwapPool {
        index: u32,
        pool: Pool,
    },
    SetFrontend {
        key: FrontendKey,
        value: layout::Frontend,
    },
    RemoveFrontend {
        key: FrontendKey,
    },
    SetDestinationBit(Bitmap),
    SetSourceBit(Bitmap),
    ClearSourceBit(Bitmap),
    SetDetail(Detail),
    RemoveDetail(Detail),
    /// The last step of a plan: no flow that it would have to end can begin after it.
    SweepFlows(Sweep),
    ResetServiceTraffic {
        index: u32,
    },
    ResetBackendTraffic {
        index: u32,
    },
}

/// What is looked up of a service port beside its frontends and pools.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Detail {
    /// A member of a pool with session affinity.
    Member(Member),
    /// Clients that may connect to a restricted service port, given by its index.
    SourceRange { service_port: u32, range: IpNet },
    /// A backend on this node to which tunnels lead.
    Target { target: TunnelTarget, backend: u32 },
    /// A node of the cluster; belongs to no service port.
    Peer(IpAddr),
    /// The name of a service port, by its index. For people; no program reads it.
    Name { service_port: u32, name: Arc<ServicePortName> },
}

impl Detail {
    /// Whether `details` has an entry with the same key: each target has only one entry.
    pub(super) fn is_replaced_in(&self, details: &BTreeSet<Self>) -> bool {
        let &Self::Target { target, .. } = self else { return details.contains(self) };
        let first = Self::Target { target, backend: 0 };
        let last = Self::Target { target, backend: u32::MAX };
        details.range(first..=last).next().is_some()
    }

    /// The index of its service port; 0 if it has none.
    pub fn service_port(&self) -> u32 {
        match self {
            Self::Member(member) => Scope::service_port_of(member.pool),
            Self::SourceRange { service_port, .. } | Self::Name { service_port, .. } => {
                *service_port
            }
            Self::Target { target, .. } => target.service_port,
            Self::Peer(_) => 0,
        }
    }
}

/// The steps from one state of the tables to the next. They are executed in the order of these
/// fields.
#[derive(Debug, Default)]
pub struct Plan {
    /// Entries that nothing refers to yet.
    pub prepare: Vec<Step>,
    pub publish_pools: Vec<Step>,
    pub publish_frontends: Vec<Step>,
    /// Entries of addresses themselves. After their frontends: ports without a frontend are
    /// rejected.
    pub publish_addresses: Vec<Step>,
    /// Entries that nothing refers to any more.
    pub retire: Vec<Step>,
    pub problems: Vec<Problem>,
    /// Service ports that are programmed only in part, for lack of room: to be planned again when
    /// something was removed.
    pub lacking: BTreeSet<ServicePortKey>,
    /// Whether the next plan has room that this one had not.
    pub makes_room: bool,
    pub(super) lack: Lack,
    pub(super) sweep: Sweep,
    /// What the kernel has already; only in the first plan after a start.
    pub(super) found: Found,
    /// The service port that is being planned.
    pub(super) current: Option<ServicePortKey>,
}

impl Plan {
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.prepare
            .iter()
            .chain(&self.publish_pools)
            .chain(&self.publish_frontends)
            .chain(&self.publish_addresses)
            .chain(&self.retire)
    }

    pub fn is_empty(&self) -> bool {
        self.steps().next().is_none()
    }

    /// Sets a frontend, or the entry of an address, unless the kernel has it already.
    pub(super) fn set_frontend(&mut self, key: FrontendKey, value: layout::Frontend) {
        if self.found.frontends.get(&key) == Some(&value) {
            return;
        }
        // If this plan sets it again, the last value is compared.
        if let Some(found) = self.found.frontends.get_mut(&key) {
            *found = value;
        }
        let steps =
            if key.port == 0 { &mut self.publish_addresses } else { &mut self.publish_frontends };
        steps.push(Step::SetFrontend { key, value });
    }

    pub(super) fn set_destination_bit(&mut self, bit: Bitmap) {
        self.sweep.bits.remove(&bit);
        if !self.found.destination_bits.contains(&bit) {
            self.prepare.push(Step::SetDestinationBit(bit));
        }
    }

    pub(super) fn problem(&mut self, about: &impl Display, message: String) {
        let service = self.current.as_ref().map(|key| &key.service);
        self.problems.push(Problem {
            object: service.map_or_else(String::new, |service| format!("Service {service}")),
            field: about.to_string(),
            message,
        });
    }

    /// Reports that something of the current service port does not fit.
    pub(super) fn lack(&mut self, about: &impl Display, message: String) {
        self.problem(about, message);
        self.lacking.extend(self.current.clone());
    }
}

/// What a client connects to. NodePorts have the unspecified address.
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
