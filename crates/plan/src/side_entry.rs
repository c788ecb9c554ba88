//! Side entries of service ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use lb_common::layout::{EarlierOwners, Member, PoolSlot, ServicePortName, TunnelTarget, map};
use lb_common::maglev::Weight;

use super::key::Scope;

/// What is looked up of a service port beside its frontends and pools.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SideEntry {
    /// A member of a pool with session affinity.
    Member(Member),
    /// The weight of a pool's backend, if it is not the default. No program reads it.
    Weight { member: Member, weight: Weight },
    /// Clients that may connect to a restricted service port, given by its index.
    SourceRange { service_port: u32, range: IpNet },
    /// A backend on this node to which tunnels lead.
    Target { target: TunnelTarget, backend: u32 },
    /// A node of the cluster; belongs to no service port.
    Peer(IpAddr),
    /// The earlier owners of a slot.
    Earlier { slot: PoolSlot, owners: EarlierOwners },
    /// The name of a service port, by its index. For people; no program reads it.
    Name { service_port: u32, name: Arc<ServicePortName> },
}

impl SideEntry {
    /// The first entry, in their order, with the key of this one in its map: an entry with another value replaces it.
    pub fn key(&self) -> Self {
        match *self {
            Self::Target { target, .. } => Self::Target { target, backend: 0 },
            Self::Weight { member, .. } => Self::Weight { member, weight: Weight::MIN },
            Self::Earlier { slot, .. } => Self::Earlier { slot, owners: EarlierOwners::default() },
            Self::Name { service_port, .. } => Self::Name { service_port, name: Arc::default() },
            Self::Member(_) | Self::SourceRange { .. } | Self::Peer(_) => self.clone(),
        }
    }

    /// Whether `side_entries` has an entry with the same key.
    pub(super) fn is_replaced_in(&self, side_entries: &BTreeSet<Self>) -> bool {
        let key = self.key();
        side_entries.range(key.clone()..).next().is_some_and(|next| next.key() == key)
    }

    /// The name of the map that contains it.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Member(_) => map::MEMBERS,
            Self::Weight { .. } => map::WEIGHTS,
            Self::SourceRange { range: IpNet::V4(_), .. } => map::SOURCE_RANGES4,
            Self::SourceRange { range: IpNet::V6(_), .. } => map::SOURCE_RANGES6,
            Self::Target { .. } => map::TARGETS,
            Self::Peer(_) => map::PEERS,
            Self::Earlier { .. } => map::EARLIER_OWNERS,
            Self::Name { .. } => map::SERVICE_NAMES,
        }
    }

    /// The index of its service port; 0 if it has none.
    pub fn service_port(&self) -> u32 {
        match self {
            Self::Member(member) | Self::Weight { member, .. } => {
                Scope::service_port_of(member.pool)
            }
            Self::SourceRange { service_port, .. } | Self::Name { service_port, .. } => {
                *service_port
            }
            Self::Target { target, .. } => target.service_port,
            Self::Earlier { slot, .. } => Scope::service_port_of(slot.pool),
            Self::Peer(_) => 0,
        }
    }
}

/// The number of side_entries of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideEntryCounts {
    pub members: usize,
    pub source_ranges: usize,
    pub targets: usize,
    pub peers: usize,
}

impl SideEntryCounts {
    pub(super) fn replace(&mut self, old: &BTreeSet<SideEntry>, new: &BTreeSet<SideEntry>) {
        new.iter()
            .for_each(|side_entry| self.of(side_entry).into_iter().for_each(|count| *count += 1));
        old.iter()
            .for_each(|side_entry| self.of(side_entry).into_iter().for_each(|count| *count -= 1));
    }

    fn of(&mut self, side_entry: &SideEntry) -> Option<&mut usize> {
        Some(match side_entry {
            SideEntry::Member(_) => &mut self.members,
            SideEntry::SourceRange { .. } => &mut self.source_ranges,
            SideEntry::Target { .. } => &mut self.targets,
            SideEntry::Peer(_) => &mut self.peers,
            // There are as many names as service ports; histories are counted by the planner; weights
            // are read by commands and the next agent only.
            SideEntry::Name { .. } | SideEntry::Earlier { .. } | SideEntry::Weight { .. } => {
                return None;
            }
        })
    }
}
