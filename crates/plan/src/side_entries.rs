//! The side_entries that a service port needs.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::{Member, TunnelTarget};
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_rules::model::ServicePort;

use super::key::{BackendKey, Scope};
use super::side_entry::SideEntry;
use super::state::Planner;

impl Planner {
    /// The side_entries of a service port. To be called when its backends have their indexes.
    pub(super) fn side_entries(
        &self,
        index: u32,
        protocol: u8,
        wanted: &ServicePort,
    ) -> BTreeSet<SideEntry> {
        let mut side_entries = BTreeSet::new();
        for scope in Scope::BOTH {
            let pool = scope.pool_index(index);
            for backend in scope.members(wanted) {
                let weight = Some(backend.weight).filter(|weight| *weight != DEFAULT_WEIGHT);
                if wanted.affinity.is_none() && weight.is_none() {
                    continue;
                }
                let key = BackendKey::of(backend, protocol);
                let Some(backend) = self.backends.index_of(&key) else { continue };
                let member = Member { pool, backend };
                side_entries.extend(weight.map(|weight| SideEntry::Weight { member, weight }));
                side_entries.extend(wanted.affinity.map(|_| SideEntry::Member(member)));
            }
        }
        side_entries.extend(self.targets(index, protocol, wanted));
        let ranges = wanted.source_ranges.iter();
        side_entries
            .extend(ranges.map(|&range| SideEntry::SourceRange { service_port: index, range }));
        side_entries
    }

    /// The targets of tunnels from other nodes. If two backends have the same tag, only the first
    /// is a target, and packets for the other one reach it, too.
    fn targets(
        &self,
        service_port: u32,
        protocol: u8,
        wanted: &ServicePort,
    ) -> impl Iterator<Item = SideEntry> + use<> {
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
        found.into_iter().map(|(target, backend)| SideEntry::Target { target, backend })
    }
}
