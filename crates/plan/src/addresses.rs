//! Addresses with an entry or a role of their own, independent of ports: this node's addresses, its
//! SNAT addresses, and those that belong to Services alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::layout::{self, FrontendKind, Silence};
use lb_rules::model::{ServicePort, TrafficPolicy};

use super::bits::Bits;
use super::key::FrontendKey;
use super::step::{Plan, Step};

/// What happens to packets to an assigned address that no port of a Service takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnservedPolicy {
    /// The address answers like that of a host.
    #[default]
    Answer,
    Drop,
    /// The stack gets them: something on this node may use the address, too.
    Pass,
}

#[derive(Default)]
pub struct Addresses {
    node: BTreeSet<IpAddr>,
    snat: BTreeSet<IpAddr>,
    /// Cluster addresses, each with its number of frontends. Packets to other ports are rejected.
    cluster: BTreeMap<IpAddr, u32>,
    /// Addresses that Millrace assigned, and the service ports there, by index.
    assigned: BTreeMap<IpAddr, BTreeMap<u32, AssignedPort>>,
    /// All addresses of this node, and the internal ones of the cluster's nodes: their other ports are the
    /// nodes' own, even if a Service has one.
    own: BTreeSet<IpAddr>,
    peers: BTreeSet<IpAddr>,
    unserved: UnservedPolicy,
    /// The entries before the plan, of addresses whose roles have changed since.
    changed: BTreeMap<IpAddr, Option<layout::Frontend>>,
    /// How many addresses have an entry.
    entries: usize,
}

/// What a service port at an assigned address says about clients of the address itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AssignedPort {
    /// Whether this node serves clients outside.
    is_served: bool,
    /// The clients that may use it; empty: all.
    source_ranges: Vec<IpNet>,
}

impl Addresses {
    pub(crate) fn set_unserved(&mut self, policy: UnservedPolicy) {
        self.unserved = policy;
    }

    /// How many addresses have an entry.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn has_entry(&self, address: IpAddr) -> bool {
        self.entry(address).is_some()
    }

    /// The entry of an address itself.
    fn entry(&self, address: IpAddr) -> Option<layout::Frontend> {
        // An address of this node has other listeners, even if a Service also claims it.
        if self.node.contains(&address) {
            return Some(layout::Frontend::of_address(FrontendKind::NodeAddress));
        }
        if self.cluster.contains_key(&address) {
            return Some(layout::Frontend::of_address(FrontendKind::ClusterIp));
        }
        let is_left = self.unserved == UnservedPolicy::Pass
            || self.own.contains(&address)
            || self.peers.contains(&address);
        let ports = self.assigned.get(&address).filter(|_| !is_left)?;
        Some(self.entry_of_assigned(ports))
    }

    /// The entry of an address whose service ports are these.
    fn entry_of_assigned(&self, ports: &BTreeMap<u32, AssignedPort>) -> layout::Frontend {
        let entry = layout::Frontend::of_address(FrontendKind::LoadBalancer);
        let mut ranges = ports.iter().map(|(index, port)| (*index, &port.source_ranges));
        let restriction = match ranges.next() {
            Some((index, first)) if ports.values().all(|port| !port.source_ranges.is_empty()) => {
                Some((index, ranges.all(|(_, other)| other == first)))
            }
            _ => None,
        };
        let is_dropped = self.unserved == UnservedPolicy::Drop
            || restriction.is_some_and(|(_, is_equal)| !is_equal);
        let silence = if is_dropped {
            Silence::Always
        } else if ports.values().any(|port| port.is_served) {
            Silence::Never
        } else {
            Silence::Outside
        };
        let entry = layout::Frontend { silence: silence as u8, ..entry };
        match restriction {
            Some((service_port, true)) => layout::Frontend { service_port, restricted: 1, ..entry },
            _ => entry,
        }
    }

    pub(crate) fn move_node(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
        for &address in wanted.difference(&self.node) {
            bits.add_destination(address, plan);
        }
        for &address in self.node.difference(&wanted) {
            bits.remove_destination(address, plan);
        }
        self.note_difference(&self.node.clone(), &wanted);
        self.node = wanted;
    }

    /// All addresses of this node, whether NodePorts are open there or not.
    pub(crate) fn move_own(&mut self, wanted: BTreeSet<IpAddr>) {
        self.note_difference(&self.own.clone(), &wanted);
        self.own = wanted;
    }

    /// The addresses of the cluster's nodes.
    pub(crate) fn exclude_peers(&mut self, wanted: &BTreeSet<IpAddr>) {
        if self.peers != *wanted {
            self.note_difference(&self.peers.clone(), wanted);
            self.peers.clone_from(wanted);
        }
    }

    /// Packets to an SNAT address must pass the prefilter.
    pub(crate) fn move_snat(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
        for &address in wanted.difference(&self.snat) {
            bits.add_destination(address, plan);
        }
        for &address in self.snat.difference(&wanted) {
            bits.remove_destination(address, plan);
        }
        self.snat = wanted;
    }

    /// Counts a frontend at a cluster address.
    pub(crate) fn add_cluster(&mut self, address: IpAddr) {
        self.note_change(address);
        *self.cluster.entry(address).or_default() += 1;
    }

    /// Counts one frontend less.
    pub(crate) fn remove_cluster(&mut self, address: IpAddr) {
        self.note_change(address);
        let Some(count) = self.cluster.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.cluster.remove(&address);
        }
    }

    /// Follows the assigned addresses of a service port.
    pub(crate) fn move_assigned(&mut self, index: u32, old: &ServicePort, wanted: &ServicePort) {
        for &address in old.assigned.difference(&wanted.assigned) {
            self.note_change(address);
            let Some(ports) = self.assigned.get_mut(&address) else { continue };
            ports.remove(&index);
            if ports.is_empty() {
                self.assigned.remove(&address);
            }
        }
        let port = AssignedPort {
            is_served: wanted.external_policy == TrafficPolicy::Cluster || !wanted.local.is_empty(),
            source_ranges: wanted.source_ranges.clone(),
        };
        for &address in &wanted.assigned {
            let ports = self.assigned.get(&address);
            if ports.and_then(|ports| ports.get(&index)) != Some(&port) {
                self.note_change(address);
                self.assigned.entry(address).or_default().insert(index, port.clone());
            }
        }
    }

    fn note_difference(&mut self, before: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>) {
        for &address in before.symmetric_difference(wanted) {
            self.note_change(address);
        }
    }

    /// To be called before a role of an address changes.
    fn note_change(&mut self, address: IpAddr) {
        if !self.changed.contains_key(&address) {
            self.changed.insert(address, self.entry(address));
        }
    }

    /// Writes the entries that differ from those before the plan.
    pub(crate) fn write_entries(&mut self, plan: &mut Plan) {
        let mut removed = Vec::new();
        for (address, before) in std::mem::take(&mut self.changed) {
            let wanted = self.entry(address);
            self.entries += usize::from(wanted.is_some());
            self.entries -= usize::from(before.is_some());
            let key = FrontendKey::of_address(address);
            match wanted {
                Some(value) if before != wanted => plan.set_frontend(key, value),
                None if before.is_some() => removed.push(Step::RemoveFrontend { key }),
                _ => {}
            }
        }
        // Before what they refer to, and before the frontends, after which they were written.
        plan.retire.splice(0..0, removed);
    }
}
