//! Counts for metrics, updated with each change, so that reading them is cheap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_common::layout::map;
use lb_kernel::OptionalEntry;
use lb_plan::{MORE_ENDPOINTS, MORE_SERVICE_PORTS, Planner, Scope, SideEntry};
use lb_rules::model::{AddressFamily, Problem, ServicePort, ServicePortKey, TrafficPolicy};
use lb_status::{Metrics, Usage};

#[derive(Default)]
pub struct Tally {
    /// Service ports whose policy requires endpoints on this node, but that have none here.
    without_local: BTreeSet<ServicePortKey>,
    without_local_external: BTreeSet<ServicePortKey>,
}

impl Tally {
    /// Updates changed service ports.
    pub fn count(&mut self, changed: &BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>) {
        for (key, port) in changed {
            let port = port.as_ref().filter(|port| port.local.is_empty());
            let internal = port.is_some_and(|port| port.internal_policy == TrafficPolicy::Local);
            let external = port.is_some_and(|port| {
                port.external_policy == TrafficPolicy::Local && port.is_external()
            });
            put(&mut self.without_local, key, internal);
            put(&mut self.without_local_external, key, external);
        }
    }

    /// Exports the indexes under which the kernel counts planned service ports.
    pub fn catalogue<'a>(
        changed: impl Iterator<Item = &'a ServicePortKey>,
        planner: &Planner,
        metrics: &Metrics,
    ) {
        metrics.catalogue(|catalog| {
            for key in changed {
                match planner.service_port_index(key) {
                    Some(index) => drop(catalog.insert(key.clone(), index)),
                    None => drop(catalog.remove(key)),
                }
            }
        });
    }

    /// Problems to report for entries that were newly set aside.
    pub fn problems_of_set_aside(
        &mut self,
        new: &[OptionalEntry],
        planner: &Planner,
    ) -> BTreeSet<Problem> {
        if new.is_empty() {
            return BTreeSet::new();
        }
        let by_index = planner.by_index();
        let problem = |entry: &OptionalEntry| {
            let (owner, message) = match entry {
                OptionalEntry::Frontend(key) => (
                    planner.owner(key)?,
                    format!(
                        "{key} is not served: the map of frontends is full; {MORE_SERVICE_PORTS}"
                    ),
                ),
                // All ports are served without it.
                OptionalEntry::Address(_) => return None,
                OptionalEntry::SideEntry(SideEntry::Member(member)) => (
                    *by_index.get(&Scope::service_port_of(member.pool))?,
                    format!(
                        "clients do not stay with all of its endpoints: the map of members is \
                         full; {MORE_ENDPOINTS}"
                    ),
                ),
                OptionalEntry::SideEntry(SideEntry::Weight { member, .. }) => (
                    *by_index.get(&Scope::service_port_of(member.pool))?,
                    format!(
                        "commands show the default weight for some of its endpoints: the map of \
                         weights is full; {MORE_ENDPOINTS}"
                    ),
                ),
                OptionalEntry::SideEntry(SideEntry::Target { target, .. }) => (
                    *by_index.get(&target.service_port)?,
                    "tunnels from other nodes don't lead to all of its endpoints here: the map of \
                     targets is full"
                        .to_owned(),
                ),
                OptionalEntry::SideEntry(SideEntry::Peer(address)) => {
                    return Some(Problem {
                        object: format!("Node with address {address}"),
                        field: String::new(),
                        message: "tunnels from it are not opened here: the map of peers is full"
                            .to_owned(),
                    });
                }
                OptionalEntry::SideEntry(SideEntry::Earlier { slot, .. }) => (
                    *by_index.get(&Scope::service_port_of(slot.pool))?,
                    "connections that routers move to this node may break: the map of earlier \
                     owners is full"
                        .to_owned(),
                ),
                OptionalEntry::SideEntry(SideEntry::Name { service_port, .. }) => (
                    *by_index.get(service_port)?,
                    format!(
                        "commands that look at the maps don't know its name: the map of names is \
                         full; {MORE_SERVICE_PORTS}"
                    ),
                ),
                OptionalEntry::SideEntry(SideEntry::SourceRange { service_port, range }) => (
                    *by_index.get(service_port)?,
                    format!(
                        "clients of {range} are kept out: the map of source ranges is full; \
                         {MORE_SERVICE_PORTS}"
                    ),
                ),
            };
            let object = format!("Service {}", owner.service);
            Some(Problem { object, field: String::new(), message })
        };
        new.iter().filter_map(problem).collect()
    }

    /// `without_room`: the number of entries set aside, by map.
    pub fn export(
        &self,
        planner: &Planner,
        lacking: usize,
        without_room: impl Iterator<Item = (&'static str, usize)>,
        metrics: &Metrics,
    ) {
        for family in AddressFamily::ALL {
            let of = |keys: &BTreeSet<ServicePortKey>| {
                keys.iter().filter(|key| key.family == family).count()
            };
            let (internal, external) = (of(&self.without_local), of(&self.without_local_external));
            metrics.set_no_local_endpoints(family, internal, external);
        }
        let mut entries =
            [("frontends", 0), ("members", 0), ("source_ranges", 0), ("targets", 0), ("peers", 0)];
        for (name, count) in without_room {
            let index = match name {
                map::FRONTENDS4 | map::FRONTENDS6 => 0,
                map::MEMBERS => 1,
                map::SOURCE_RANGES4 | map::SOURCE_RANGES6 => 2,
                map::TARGETS => 3,
                map::PEERS => 4,
                // Others are not counted.
                _ => continue,
            };
            entries[index].1 += count;
        }
        metrics.set_without_room(lacking, &entries);
        metrics.set_table_checksum(planner.table_checksum());
        let [frontends, members, source_ranges, targets, peers] = entries.map(|(_, count)| count);
        let side_entries = planner.side_entry_counts();
        metrics.set_usage(Usage {
            frontends: planner.frontends() - frontends,
            service_ports: planner.service_ports(),
            earlier_owners: planner.slots_with_history(),
            backends: planner.backends(),
            pool_slots: planner.pool_slots(),
            members: side_entries.members - members,
            source_ranges: side_entries.source_ranges - source_ranges,
            targets: side_entries.targets - targets,
            peers: side_entries.peers - peers,
        });
    }
}

fn put(keys: &mut BTreeSet<ServicePortKey>, key: &ServicePortKey, within: bool) {
    if within {
        keys.insert(key.clone());
    } else {
        keys.remove(key);
    }
}
