//! Details of service ports: what is looked up beside frontends, pools and backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use lb_common::layout::{Member, ServicePortName, TunnelTarget};

use super::Planner;
use super::key::{BackendKey, Scope};
use crate::model::ServicePort;

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

/// The number of details of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetailCounts {
    pub members: usize,
    pub source_ranges: usize,
    pub targets: usize,
    pub peers: usize,
}

impl DetailCounts {
    pub(super) fn replace(&mut self, old: &BTreeSet<Detail>, new: &BTreeSet<Detail>) {
        new.iter().for_each(|detail| self.of(detail).into_iter().for_each(|count| *count += 1));
        old.iter().for_each(|detail| self.of(detail).into_iter().for_each(|count| *count -= 1));
    }

    fn of(&mut self, detail: &Detail) -> Option<&mut usize> {
        Some(match detail {
            Detail::Member(_) => &mut self.members,
            Detail::SourceRange { .. } => &mut self.source_ranges,
            Detail::Target { .. } => &mut self.targets,
            Detail::Peer(_) => &mut self.peers,
            // There are as many as service ports.
            Detail::Name { .. } => return None,
        })
    }
}

impl Planner {
    /// The details of a service port. To be called when its backends have their indexes.
    pub(super) fn details(
        &self,
        index: u32,
        protocol: u8,
        wanted: &ServicePort,
    ) -> BTreeSet<Detail> {
        let mut details = BTreeSet::new();
        if wanted.affinity.is_some() {
            for scope in Scope::BOTH {
                let pool = scope.pool_index(index);
                let keys = scope.members(wanted).iter();
                let keys = keys.map(|m| BackendKey::new(m.address, m.port, protocol));
                let backends = keys.filter_map(|key| self.backends.index_of(&key));
                details.extend(backends.map(|backend| Detail::Member(Member { pool, backend })));
            }
        }
        details.extend(self.targets(index, protocol, wanted));
        let ranges = wanted.source_ranges.iter();
        details.extend(ranges.map(|&range| Detail::SourceRange { service_port: index, range }));
        details
    }

    /// The targets of tunnels from other nodes. If two backends have the same tag, only the first
    /// is a target, and packets for the other one reach it, too.
    fn targets(
        &self,
        service_port: u32,
        protocol: u8,
        wanted: &ServicePort,
    ) -> impl Iterator<Item = Detail> + use<> {
        let mut found = BTreeMap::new();
        if wanted.is_tunnelled() {
            let local = wanted.cluster.union(&wanted.local).filter(|member| member.local);
            for member in local {
                let key = BackendKey::new(member.address, member.port, protocol);
                if let Some(backend) = self.backends.index_of(&key) {
                    let target = TunnelTarget { service_port, tag: key.tag().into() };
                    found.entry(target).or_insert(backend);
                }
            }
        }
        found.into_iter().map(|(target, backend)| Detail::Target { target, backend })
    }
}
