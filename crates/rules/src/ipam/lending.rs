//! Services of pools that stand for nodes: they have no address of their own, but ports on the addresses of nodes.
//!
//! Invariants:
//! - A Service gets only ports that the pool lists, and none that nodes need themselves.
//! - Of two Services that want a port of one node, the one that has it keeps it, whichever is older.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::ledger::SearchStart;
use super::lending_nodes::EndpointNodes;
use super::outcome::{Outcome, PortOutcome, Reason, Refusal};
use super::pools::PoolIndex;
use super::request::{AddressRequest, FamilyPolicy};
use super::{Ipam, IpamService, LendingNodes, Usage, list};
use crate::model::{AddressFamily, Node, ProtocolPort, ServiceName, Slice, find_owner_on_nodes};

/// Addresses in one status, of each family. Names of more resolve slowly, and every change of a node writes all.
const MAX_LISTED_NODES: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Lending {
    nodes: BTreeMap<String, Node>,
    endpoints: EndpointNodes,
    holders: BTreeMap<ProtocolPort, BTreeSet<SearchStart>>,
    /// Services of pools that stand for nodes.
    pub(crate) borrowers: BTreeSet<SearchStart>,
}

/// What becomes of a Service of a pool that stands for nodes.
pub(crate) struct Borrowed {
    pub(crate) outcome: Outcome,
    /// Addresses of its own that it has until it gets a port.
    pub(crate) kept_addresses: Vec<IpAddr>,
}

impl Ipam {
    /// Takes over what was gathered while another process assigned addresses.
    pub fn set_endpoint_nodes(&mut self, endpoints: EndpointNodes) {
        self.lending.endpoints = endpoints;
        self.due.extend(self.lending.borrowers.iter().cloned());
    }

    pub(super) fn set_node(&mut self, node: &Node) {
        if self.lending.nodes.get(&node.name) != Some(node) {
            self.lending.nodes.insert(node.name.clone(), node.clone());
            self.due.extend(self.lending.borrowers.iter().cloned());
        }
    }

    pub(super) fn remove_node(&mut self, name: &str) {
        if self.lending.nodes.remove(name).is_some() {
            self.due.extend(self.lending.borrowers.iter().cloned());
        }
    }

    pub(super) fn set_slice(&mut self, slice: &Slice) {
        let services = self.lending.endpoints.apply(slice);
        self.wake_borrowers(&services);
    }

    pub(super) fn remove_slice(&mut self, slice: &ServiceName) {
        let services = self.lending.endpoints.remove(slice);
        self.wake_borrowers(&services);
    }

    fn wake_borrowers(&mut self, services: &BTreeSet<ServiceName>) {
        let turns = services.iter().filter_map(|name| self.services.get(name));
        let turns = turns.map(|entry| &entry.turn);
        let borrowers = turns.filter(|turn| self.lending.borrowers.contains(turn));
        self.due.extend(borrowers.cloned());
    }

    /// Notes the ports that a Service has on nodes. Those that it had are offered to others.
    pub(super) fn set_ports(&mut self, name: &ServiceName, ports: BTreeSet<ProtocolPort>) {
        let Some(entry) = self.services.get_mut(name) else { return };
        if entry.ports == ports {
            return;
        }
        let turn = entry.turn.clone();
        let before = std::mem::replace(&mut entry.ports, ports.clone());
        for port in ports.difference(&before) {
            self.lending.holders.entry(*port).or_default().insert(turn.clone());
        }
        for port in before.difference(&ports) {
            if let Some(holders) = self.lending.holders.get_mut(port) {
                holders.remove(&turn);
                if holders.is_empty() {
                    self.lending.holders.remove(port);
                }
            }
            let waits = |other: &&SearchStart| {
                *other != &turn
                    && self.request_of(&other.1).is_some_and(|one| one.ports.contains(port))
            };
            let waiting: Vec<SearchStart> =
                self.lending.borrowers.iter().filter(waits).cloned().collect();
            self.due.extend(waiting);
        }
    }

    /// The pool of nodes that decides about a Service: the first that admits it, unless the Service has or requests
    /// addresses of its own.
    pub(super) fn pool_of_nodes(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        held: &[IpAddr],
    ) -> Option<PoolIndex> {
        let keeps_own = request.pool.is_none() && !held.is_empty();
        if keeps_own || !request.addresses.is_empty() {
            return None;
        }
        let first = *self.admitting(&turn.1, request).ok()?.first()?;
        self.pools.get(first).nodes.is_some().then_some(first)
    }

    pub(super) fn decide_ports(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        pool: PoolIndex,
        entry: &IpamService,
    ) -> Borrowed {
        let name = &self.pools.get(pool).name;
        let mut ports = Vec::new();
        let mut refusal: Option<Refusal> = None;
        if let Some(fault) = &request.fault {
            refusal = Some(Refusal::new(Reason::InvalidRequest, fault));
        }
        let is_faulty = refusal.is_some();
        for &(protocol, port) in &request.ports {
            let has = entry.ports.contains(&(protocol, port));
            let refused = match self.refuse_port(turn, pool, (protocol, port), has) {
                None if is_faulty && !has => Some(Reason::InvalidRequest),
                None => None,
                Some(why) => {
                    let reason = why.reason;
                    refusal.get_or_insert(why);
                    Some(reason)
                }
            };
            ports.push(PortOutcome { protocol, port, refused });
        }
        let has_any = ports.iter().any(|port| port.refused.is_none());
        let mut addresses = Vec::new();
        let mut note = None;
        if has_any {
            match self.addresses_of_nodes(turn, request, pool) {
                Ok((listed, lacking)) => (addresses, note) = (listed, lacking),
                Err(why) => drop(refusal.get_or_insert(why)),
            }
        }
        let (reason, mut message) = match refusal {
            Some(refusal) => (refusal.reason, refusal.message),
            None => {
                let parts = [Some(format!("ports of the nodes of {name}")), note];
                let parts: Vec<String> = parts.into_iter().flatten().collect();
                (Reason::Assigned, parts.join("; "))
            }
        };
        let kept_addresses = if has_any { Vec::new() } else { entry.addresses.clone() };
        if !kept_addresses.is_empty() {
            message.push_str(&format!(". Until then it keeps {}", list(&kept_addresses)));
            addresses.clone_from(&kept_addresses);
            ports.clear();
        }
        let outcome = Outcome { addresses, ports, reason, message, outside: 0 };
        Borrowed { outcome, kept_addresses }
    }

    /// Why a Service does not get a port of nodes.
    fn refuse_port(
        &self,
        turn: &SearchStart,
        pool: PoolIndex,
        (protocol, port): ProtocolPort,
        has: bool,
    ) -> Option<Refusal> {
        let of = self.pools.get(pool);
        let nodes = of.nodes.as_ref()?;
        let named = format!("{} port {port}", protocol.name());
        if !nodes.lists(port) {
            let message = format!(
                "{named} is not among spec.nodes.ports of {}: use a listed port, or another pool",
                of.name
            );
            return Some(Refusal::new(Reason::PortNotAllowed, message));
        }
        let is_kubelets =
            || self.lending.nodes.values().any(|node| node.kubelet_port == Some(port));
        let owner = find_owner_on_nodes(port)
            .or_else(|| is_kubelets().then_some("the kubelet"))
            .or_else(|| self.settings.needed_ports.contains(&port).then_some("the API server"));
        if let Some(owner) = owner {
            let message =
                format!("nodes need {named} for {owner}: no Service gets it, use another port");
            return Some(Refusal::new(Reason::PortNotAllowed, message));
        }
        let holders = self.lending.holders.get(&(protocol, port)).into_iter().flatten();
        let mut others = holders.filter(|other| *other != turn && !(has && turn < *other));
        let other = others.find(|other| self.shares_nodes(pool, other))?;
        let message = format!(
            "Service {} has {named} of nodes of {}: give one of them another port",
            other.1, of.name
        );
        Some(Refusal::new(Reason::SharingConflict, message))
    }

    /// Whether a pool and that of another Service select a node in common.
    fn shares_nodes(&self, pool: PoolIndex, other: &SearchStart) -> bool {
        let Some(entry) = self.services.get(&other.1) else { return false };
        let others = self.pool_of_nodes(other, &entry.request, &entry.addresses);
        let Some(others) = others else { return false };
        let nodes = |index: PoolIndex| self.pools.get(index).nodes.as_ref();
        let both = nodes(pool).zip(nodes(others));
        let is_common = |(one, two): (&LendingNodes, &LendingNodes)| {
            let mut all = self.lending.nodes.values();
            all.any(|node| one.selects(&node.labels) && two.selects(&node.labels))
        };
        pool == others || both.is_some_and(is_common)
    }

    /// The addresses of healthy nodes, and what is lacking.
    fn addresses_of_nodes(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        pool: PoolIndex,
    ) -> Result<(Vec<IpAddr>, Option<String>), Refusal> {
        let of = self.pools.get(pool);
        let Some(nodes) = &of.nodes else { return Ok((Vec::new(), None)) };
        let is_local = request.local_backends.is_some();
        let with_endpoints = self.lending.endpoints.of_service(&turn.1);
        let families = request.wanted_families();
        let mut addresses = Vec::new();
        let mut lacking = Vec::new();
        for family in &families {
            let all = self.lending.nodes.values();
            let mut listed = nodes.list_addresses(all, *family, |node| {
                !is_local || with_endpoints.contains(&*node.name)
            });
            listed.truncate(MAX_LISTED_NODES);
            if listed.is_empty() {
                lacking.push(family.name());
            }
            addresses.extend(listed);
        }
        let is_enough = match request.policy {
            FamilyPolicy::Prefer => lacking.len() < families.len(),
            FamilyPolicy::Single | FamilyPolicy::Require => lacking.is_empty(),
        };
        if is_enough {
            let note = lacking.first().map(|family| format!("no {family} address of a node"));
            return Ok((addresses, note));
        }
        let lacking = lacking.join(" or ");
        let what = if is_local {
            " and ready endpoints of the Service (externalTrafficPolicy: Local)"
        } else {
            ""
        };
        let message =
            format!("{} selects no healthy node with an {lacking} address{what}", of.name);
        Err(Refusal::new(Reason::NoNode, message))
    }

    /// The addresses of healthy nodes are used if any Service has a port of them.
    pub(super) fn usage_of_nodes(&self) -> impl Iterator<Item = Usage<'_>> {
        let used: BTreeSet<PoolIndex> = self
            .lending
            .borrowers
            .iter()
            .filter_map(|turn| {
                let entry = self.services.get(&turn.1).filter(|entry| !entry.ports.is_empty())?;
                self.pool_of_nodes(turn, &entry.request, &entry.addresses)
            })
            .collect();
        let pools =
            self.pools.iter().filter_map(|(index, pool)| Some((index, pool, pool.nodes.as_ref()?)));
        let all = pools.flat_map(move |(index, pool, nodes)| {
            let is_used = used.contains(&index);
            AddressFamily::ALL.map(|family| {
                let count =
                    nodes.list_addresses(self.lending.nodes.values(), family, |_| true).len();
                let (used, free) = if is_used { (count, 0) } else { (0, count) };
                Usage { pool: &pool.name, family, used: used as u64, free: free as u128 }
            })
        });
        all.filter(|usage| usage.used > 0 || usage.free > 0)
    }
}
