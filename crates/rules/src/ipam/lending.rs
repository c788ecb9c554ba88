//! Services of pools that stand for nodes: they have no address of their own, but ports on the addresses of nodes.
//!
//! Invariants:
//! - A Service gets only ports that the pool lists, and none that nodes need themselves.
//! - Of two Services that want a port of one node, the one that has it of that node's pool keeps it, whichever is older.
//! - What one Node object says takes no port away from a Service on other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ledger::SearchStart;
use super::lending_nodes::{EndpointNodes, api_server_service};
use super::outcome::{AssignmentOutcome, AssignmentReason, PortOutcome, Refusal};
use super::pools::PoolIndex;
use super::request::{AddressRequest, FamilyPolicy};
use super::{Ipam, IpamService, LendingNodes, Usage, list};
use crate::model::{
    AddressFamily, Node, PortGrant, ProtocolPort, ServiceName, Slice, find_owner_on_nodes,
};

/// Addresses in one status, of each family. Names of more resolve slowly, and every change of a node writes all.
const MAX_LISTED_NODES: usize = 128;
/// Ports of one Service. Each has an entry for each listed address.
const MAX_PORTS: usize = 64;
/// Entries of ports in one status. Larger objects are refused by etcd, and every agent reads them.
const MAX_PORT_STATUSES: usize = 4096;
/// Remarks in one message.
const MAX_NOTES: usize = 4;

fn pool_name(grant: Option<&PortGrant>) -> Option<&str> {
    grant.map(|grant| grant.pool.as_str())
}

/// What becomes of a Service of a pool that stands for nodes.
pub(crate) struct Borrowed {
    pub(crate) outcome: AssignmentOutcome,
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
        if services.contains(&api_server_service()) {
            self.due.extend(self.lending.borrowers.iter().cloned());
        }
        let turns = services.iter().filter_map(|name| self.services.get(name));
        let turns = turns.map(|entry| &entry.turn);
        let borrowers = turns.filter(|turn| self.lending.borrowers.contains(turn));
        self.due.extend(borrowers.cloned());
    }

    /// Notes the ports that a Service has on nodes. Those that it had are offered to others.
    pub(super) fn set_ports(&mut self, name: &ServiceName, grant: Option<PortGrant>) {
        let Some(entry) = self.services.get_mut(name) else { return };
        if entry.grant == grant {
            return;
        }
        let turn = entry.turn.clone();
        let before = std::mem::replace(&mut entry.grant, grant.clone());
        let is_same_pool = pool_name(before.as_ref()) == pool_name(grant.as_ref());
        let before = before.map(|grant| grant.ports).unwrap_or_default();
        let ports = grant.map(|grant| grant.ports).unwrap_or_default();
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
        }
        for port in before.iter().filter(|port| !is_same_pool || !ports.contains(port)) {
            let waits = |other: &&SearchStart| {
                *other != &turn
                    && self.request_of(&other.1).is_some_and(|one| one.ports.contains(port))
            };
            let waiting: Vec<SearchStart> =
                self.lending.borrowers.iter().filter(waits).cloned().collect();
            self.due.extend(waiting);
        }
    }

    /// The pool of nodes that decides about a Service: the one of which it has ports; otherwise the first that admits
    /// it, unless the Service has or requests addresses of its own.
    pub(super) fn pool_of_nodes(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        entry: &IpamService,
    ) -> Option<PoolIndex> {
        let kept = self.kept_pool(turn, request, entry);
        if !request.addresses.is_empty() {
            let keeps = || self.decide(turn, request, &entry.addresses).refusal.is_some();
            return kept.filter(|_| keeps());
        }
        if kept.is_some() {
            return kept;
        }
        let keeps_own = request.pool.is_none() && !entry.addresses.is_empty();
        if keeps_own {
            return None;
        }
        let first = *self.admitting(&turn.1, request).ok()?.first()?;
        self.pools.get(first).nodes.is_some().then_some(first)
    }

    /// The pool of which a Service has ports, if it may keep them: its pool admits it, and it requests no other one.
    fn kept_pool(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        entry: &IpamService,
    ) -> Option<PoolIndex> {
        let name = pool_name(entry.grant.as_ref())?;
        if request.pool.as_ref().is_some_and(|wanted| wanted != name) {
            return None;
        }
        let (namespace, labels) = (&turn.1.namespace, self.labels_of(&turn.1));
        self.pool_of_grant(name)
            .filter(|pool| self.pools.get(*pool).admits(namespace, labels, &request.labels))
    }

    fn pool_of_grant(&self, name: &str) -> Option<PoolIndex> {
        self.pools.named(name).find(|pool| self.pools.get(*pool).nodes.is_some())
    }

    pub(super) fn decide_ports(
        &self,
        turn: &SearchStart,
        request: &AddressRequest,
        pool: PoolIndex,
        entry: &IpamService,
    ) -> Borrowed {
        let of = self.pools.get(pool);
        let name = &of.name;
        let held = entry.grant.as_ref().filter(|grant| grant.pool == name.name());
        let mut ports = Vec::new();
        let mut notes = Vec::new();
        let mut refusal: Option<Refusal> = None;
        if let Some(fault) = &request.fault {
            refusal = Some(Refusal::new(AssignmentReason::InvalidRequest, fault));
        }
        let is_faulty = refusal.is_some();
        let is_too_large = request.ports.len() > MAX_PORTS;
        if is_too_large {
            let message = format!("it has more than {MAX_PORTS} ports: no pool of nodes takes it");
            refusal.get_or_insert(Refusal::new(AssignmentReason::InvalidRequest, message));
        }
        for &(protocol, port) in request.ports.iter().filter(|_| !is_too_large) {
            let has = held.is_some_and(|grant| grant.ports.contains(&(protocol, port)));
            let refused = match self.refuse_port(turn, pool, (protocol, port), has) {
                Ok(_) if is_faulty && !has => Some(AssignmentReason::InvalidRequest),
                Ok(note) => {
                    notes.extend(note);
                    None
                }
                Err(why) => {
                    let reason = why.reason;
                    refusal.get_or_insert(why);
                    Some(reason)
                }
            };
            ports.push(PortOutcome { protocol, port, refused });
        }
        let granted = ports.iter().filter(|port| port.refused.is_none());
        let granted: BTreeSet<ProtocolPort> =
            granted.map(|port| (port.protocol, port.port)).collect();
        let has_any = !granted.is_empty();
        let grant = has_any.then(|| PortGrant { pool: name.name().to_owned(), ports: granted });
        let mut addresses = Vec::new();
        if has_any {
            match self.addresses_of_nodes(turn, request, pool) {
                Ok((listed, lacking)) => {
                    addresses = listed;
                    notes.splice(0..0, lacking);
                }
                Err(why) => drop(refusal.get_or_insert(why)),
            }
        }
        notes.truncate(MAX_NOTES);
        let (reason, mut message) = match refusal {
            Some(refusal) => (refusal.reason, refusal.message),
            None => {
                notes.insert(0, format!("ports of the nodes of {name}"));
                (AssignmentReason::Assigned, notes.join("; "))
            }
        };
        let kept_addresses = if has_any { Vec::new() } else { entry.addresses.clone() };
        if !kept_addresses.is_empty() {
            message.push_str(&format!(". Until then it keeps {}", list(&kept_addresses)));
            addresses.clone_from(&kept_addresses);
            ports.clear();
        }
        let outcome = AssignmentOutcome { addresses, ports, grant, reason, message, outside: 0 };
        Borrowed { outcome, kept_addresses }
    }

    /// Why a Service does not get a port of nodes. If it gets it, what is to be said about it.
    fn refuse_port(
        &self,
        turn: &SearchStart,
        pool: PoolIndex,
        (protocol, port): ProtocolPort,
        has: bool,
    ) -> Result<Option<String>, Refusal> {
        let of = self.pools.get(pool);
        let named = format!("{} port {port}", protocol.name());
        if !of.nodes.as_ref().is_some_and(|nodes| nodes.lists(port)) {
            let message = format!(
                "{named} is not among spec.nodes.ports of {}: use a listed port, or another pool",
                of.name
            );
            return Err(Refusal::new(AssignmentReason::PortNotAllowed, message));
        }
        if let Some(owner) = find_owner_on_nodes(port) {
            let message =
                format!("nodes need {named} for {owner}: no Service gets it, use another port");
            return Err(Refusal::new(AssignmentReason::PortNotAllowed, message));
        }
        let holders = self.lending.holders.get(&(protocol, port)).into_iter().flatten();
        let mut note = None;
        for other in holders.filter(|other| *other != turn) {
            let Some(others) = self.granting_pool(other) else { continue };
            // Of two that have it in one pool, the older one keeps it.
            if has && others == pool && turn < other || !self.shares_nodes(pool, others) {
                continue;
            }
            // Labels of nodes change, and kubelets may set some: that takes no port away from the Service that has it. On
            // nodes of both pools, agents serve the older one.
            if has && others != pool {
                note.get_or_insert_with(|| {
                    format!("Service {} has {named} on nodes that both pools select", other.1)
                });
                continue;
            }
            let message = format!(
                "Service {} has {named} of nodes of {}: give one of them another port",
                other.1, of.name
            );
            return Err(Refusal::new(AssignmentReason::SharingConflict, message));
        }
        Ok(note)
    }

    fn granting_pool(&self, holder: &SearchStart) -> Option<PoolIndex> {
        let entry = self.services.get(&holder.1)?;
        self.pool_of_grant(pool_name(entry.grant.as_ref())?)
    }

    /// Whether two pools select a node in common.
    fn shares_nodes(&self, pool: PoolIndex, others: PoolIndex) -> bool {
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
    ) -> Result<(Vec<IpAddr>, Vec<String>), Refusal> {
        let of = self.pools.get(pool);
        let Some(nodes) = &of.nodes else { return Ok((Vec::new(), Vec::new())) };
        let is_local = request.local_backends.is_some();
        let endpoints = &self.lending.endpoints;
        let families = request.wanted_families();
        let most = MAX_PORT_STATUSES / request.ports.len().max(1) / families.len().max(1);
        let mut addresses = Vec::new();
        let mut lacking = Vec::new();
        let mut is_none_ready = false;
        for family in &families {
            let with_endpoints = endpoints.of_service(&turn.1, *family);
            let mut listed = nodes.list_addresses(self.lending.nodes.values(), *family, |node| {
                let has_endpoints = !is_local || with_endpoints.contains(&*node.name);
                has_endpoints && !endpoints.has_api_server(node, &request.ports)
            });
            listed.addresses.truncate(most.min(MAX_LISTED_NODES));
            if listed.addresses.is_empty() {
                lacking.push(family.name());
            }
            is_none_ready |= listed.is_none_ready;
            addresses.extend(listed.addresses);
        }
        let is_enough = match request.policy {
            FamilyPolicy::Prefer => lacking.len() < families.len(),
            FamilyPolicy::Single | FamilyPolicy::Require => lacking.is_empty(),
        };
        if is_enough {
            let lacking = lacking.first().map(|family| format!("no {family} address of a node"));
            let unready = is_none_ready
                .then(|| "no selected node is ready, so that all are listed".to_owned());
            return Ok((addresses, lacking.into_iter().chain(unready).collect()));
        }
        let lacking = lacking.join(" or ");
        let what = if is_local {
            " and ready endpoints of the Service (externalTrafficPolicy: Local)"
        } else {
            ""
        };
        let message =
            format!("{} selects no healthy node with an {lacking} address{what}", of.name);
        Err(Refusal::new(AssignmentReason::NoNode, message))
    }

    /// The addresses of healthy nodes are used if any Service has a port of them.
    pub(super) fn usage_of_nodes(&self) -> impl Iterator<Item = Usage<'_>> {
        let used: BTreeSet<PoolIndex> =
            self.lending.borrowers.iter().filter_map(|turn| self.granting_pool(turn)).collect();
        let pools =
            self.pools.iter().filter_map(|(index, pool)| Some((index, pool, pool.nodes.as_ref()?)));
        let all = pools.flat_map(move |(index, pool, nodes)| {
            let is_used = used.contains(&index);
            AddressFamily::ALL.map(|family| {
                let listed = nodes.list_addresses(self.lending.nodes.values(), family, |_| true);
                let count = listed.addresses.len();
                let (used, free) = if is_used { (count, 0) } else { (0, count) };
                Usage { pool: &pool.name, family, used: used as u64, free: free as u128 }
            })
        });
        all.filter(|usage| usage.used > 0 || usage.free > 0)
    }
}
