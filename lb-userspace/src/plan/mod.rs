//! The pure difference between what the kernel holds and what it should hold.
//!
//! [`Planner`] remembers what was planned before; given what changed, it answers with ordered
//! [`Step`]s. Work is proportional to the change.
//!
//! # Invariants
//! - The steps never expose a half-made service: backends and tables are there before the pool
//!   that leads to them, pools before the frontend; what is retired goes the other way round.
//! - An index or a region that was given up is not given out again within the same plan: a
//!   packet that is on its way may still name it.
//! - A backend index that gets another owner gets another generation.
//!
//! Tests: `tests.rs` beside this file.

mod addresses;
mod adopt;
mod allocate;
mod backends;
mod bits;
mod datagrams;
mod look;
mod names;
mod room;
mod step;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use lb_common::layout::{self, Forwarding, FrontendKind, Member, Pool, Target};
use lb_common::maglev;

use crate::model::{Policy, ServicePort, ServicePortKey};

pub use adopt::{FoundBackend, Snapshot};
pub use backends::{BackendKey, Standing};
pub use datagrams::Datagrams;
pub use room::{MORE_ENDPOINTS, MORE_SERVICE_PORTS, Room};
pub use step::{Detail, FrontendKey, Plan, Scope, Step};
pub use table::Table;

use addresses::Addresses;
use allocate::{Indexes, Region, Regions};
use backends::Backends;
use bits::Bits;

/// What changed since the last plan.
#[derive(Debug, Default)]
pub struct Change {
    /// `None`: the service port is gone.
    pub service_ports: BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>,
    /// The addresses of this node on which NodePorts are open, if they changed.
    pub node_addresses: Option<BTreeSet<IpAddr>>,
    /// The addresses under which this node forwards connections to others, if they changed:
    /// answers come to them.
    pub alias_addresses: Option<BTreeSet<IpAddr>>,
    /// The addresses of the cluster's nodes, if they changed: tunnels come from there.
    pub peers: Option<BTreeSet<IpAddr>>,
}

/// What the kernel holds as far as it was planned.
pub struct Planner {
    room: Room,
    held: BTreeMap<ServicePortKey, Held>,
    /// Who put each frontend there: it may move from one service port to another in one change.
    owners: HashMap<FrontendKey, Owner>,
    addresses: Addresses,
    indexes: Indexes,
    regions: Regions,
    backends: Backends,
    bits: Bits,
    detail_counts: DetailCounts,
    peers: BTreeSet<IpAddr>,
    adopted: Option<adopt::Adopted>,
    /// Whether an earlier agent may have had any index.
    has_adopted: bool,
}

/// Who put a frontend into the kernel, and as what.
struct Owner {
    service_port: ServicePortKey,
    kind: FrontendKind,
}

/// One service port in the kernel.
struct Held {
    index: u32,
    /// Shared with the model, which keeps it, too.
    service_port: Arc<ServicePort>,
    /// By scope: cluster, local.
    regions: [Region; 2],
    /// Those of its endpoints in no pool that the kernel knows: some flow may lead to them.
    draining: Vec<BackendKey>,
    details: BTreeSet<Detail>,
    /// Whether the kernel has its name. That follows from its key, so it is not kept here.
    is_named: bool,
}

impl Held {
    /// As it is before anything of it is in the kernel.
    fn empty(index: u32, regions: [Region; 2]) -> Self {
        Self {
            index,
            service_port: Arc::default(),
            regions,
            draining: Vec::new(),
            details: BTreeSet::new(),
            is_named: false,
        }
    }
}

/// How many details there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetailCounts {
    pub members: usize,
    pub source_ranges: usize,
    pub targets: usize,
    pub peers: usize,
}

impl DetailCounts {
    fn replace(&mut self, old: &BTreeSet<Detail>, new: &BTreeSet<Detail>) {
        new.iter().for_each(|detail| self.of(detail).into_iter().for_each(|count| *count += 1));
        old.iter().for_each(|detail| self.of(detail).into_iter().for_each(|count| *count -= 1));
    }

    fn of(&mut self, detail: &Detail) -> Option<&mut usize> {
        Some(match detail {
            Detail::Member(_) => &mut self.members,
            Detail::SourceRange { .. } => &mut self.source_ranges,
            Detail::Target { .. } => &mut self.targets,
            Detail::Peer(_) => &mut self.peers,
            // As many as service ports.
            Detail::Name { .. } => return None,
        })
    }
}

/// What a service port had and has no more.
struct Leftover {
    owner: ServicePortKey,
    frontends: Vec<FrontendKey>,
    members: Vec<BackendKey>,
    draining: Vec<BackendKey>,
    details: Vec<Detail>,
    /// The index and regions of a service port that is gone altogether.
    retired: Option<(u32, [Region; 2])>,
}

impl Planner {
    /// Starts from a kernel that holds nothing, with maps of the ordinary sizes.
    pub fn new() -> Self {
        Self::with_room(Room::default())
    }

    /// Starts from a kernel that holds nothing.
    pub fn with_room(room: Room) -> Self {
        Self {
            room,
            held: BTreeMap::new(),
            owners: HashMap::new(),
            addresses: Addresses::default(),
            // Index 0 has the pool that is always empty.
            indexes: Indexes::new(1, room.service_ports),
            regions: Regions::new(room.pool_slots),
            backends: Backends::new(room.backends),
            bits: Bits::default(),
            detail_counts: DetailCounts::default(),
            peers: BTreeSet::new(),
            adopted: None,
            has_adopted: false,
        }
    }

    /// Plans a change. What does not fit is named in the plan's problems; the rest is planned.
    pub fn plan(&mut self, change: Change) -> Plan {
        let mut plan = Plan::default();
        self.indexes.settle();
        self.regions.settle();
        self.backends.settle();

        if let Some(addresses) = change.node_addresses {
            self.addresses.move_node(addresses, &mut self.bits, &mut plan);
        }
        if let Some(addresses) = change.alias_addresses {
            self.addresses.move_alias(addresses, &mut self.bits, &mut plan);
        }
        if let Some(peers) = change.peers {
            let peer = |address: &IpAddr| Detail::Peer(*address);
            plan.prepare.extend(peers.difference(&self.peers).map(peer).map(Step::SetDetail));
            plan.retire.extend(self.peers.difference(&peers).map(peer).map(Step::RemoveDetail));
            self.detail_counts.peers = peers.len();
            self.peers = peers;
        }
        // First everything that appears, then everything that goes: a frontend or backend may
        // change hands within one change, and must not be retired in between.
        let mut leftovers = Vec::new();
        for (key, wanted) in change.service_ports {
            plan.current = Some(key.clone());
            match wanted {
                Some(wanted) => leftovers.extend(self.put(key, wanted, &mut plan)),
                None => leftovers.extend(self.take_out(key)),
            }
        }
        for leftover in leftovers {
            self.retire(leftover, &mut plan);
        }
        self.retire_adopted(&mut plan);
        Self::end_datagrams(&mut plan);
        Bits::clear_destinations(&mut plan);
        plan
    }

    /// Publishes what is wanted of one service port; what it had before is returned.
    fn put(
        &mut self,
        key: ServicePortKey,
        mut wanted: Arc<ServicePort>,
        plan: &mut Plan,
    ) -> Option<Leftover> {
        if let Some(held) = self.held.get_mut(&key)
            && held.service_port == wanted
        {
            // The same, but as the model keeps it now.
            held.service_port = wanted;
            return None;
        }
        let old = match self.held.remove(&key) {
            Some(held) => held,
            None => self.start(&key, &wanted, plan)?,
        };
        let index = old.index;
        let protocol = key.protocol.number();
        let regions =
            Scope::BOTH.map(|scope| self.refill(index, scope, protocol, &old, &mut wanted, plan));
        // Before what left the pools is released, so that it stays.
        let draining = wanted.draining.iter();
        let draining: Vec<BackendKey> = draining
            .map(|member| BackendKey::new(member.address, member.port, protocol))
            .filter(|member| self.backends.keep(member))
            .collect();

        if !old.is_named {
            plan.prepare.push(Step::SetDetail(names::detail(index, &key)));
        }
        let details = self.details(index, protocol, &wanted);
        self.detail_counts.replace(&old.details, &details);
        plan.prepare.extend(details.difference(&old.details).cloned().map(Step::SetDetail));

        let value = frontend_value(index, &wanted);
        let republish = frontend_value(index, &old.service_port) != value;
        for frontend in &wanted.frontends {
            if republish || !old.service_port.frontends.contains(frontend) {
                let frontend_key = FrontendKey::new(frontend.address, frontend.port, protocol);
                self.publish_frontend(frontend_key, &key, frontend.kind, value, plan);
            }
        }

        let frontends = old.service_port.frontends.iter();
        let kept: BTreeSet<_> = wanted.frontends.iter().map(|f| (f.address, f.port)).collect();
        let leftover = Leftover {
            frontends: frontends
                .filter(|f| !kept.contains(&(f.address, f.port)))
                .map(|f| FrontendKey::new(f.address, f.port, protocol))
                .collect(),
            members: Scope::BOTH
                .into_iter()
                .filter(|scope| scope.members(&old.service_port) != scope.members(&wanted))
                .flat_map(|scope| scope.members(&old.service_port))
                .map(|member| BackendKey::new(member.address, member.port, protocol))
                .collect(),
            draining: old.draining,
            details: old.details.difference(&details).cloned().collect(),
            owner: key.clone(),
            retired: None,
        };
        let service_port = wanted;
        let held = Held { index, service_port, regions, draining, details, is_named: true };
        self.held.insert(key, held);
        Some(leftover)
    }

    /// Forgets a service port; all of it is left over.
    fn take_out(&mut self, key: ServicePortKey) -> Option<Leftover> {
        let held = self.held.remove(&key)?;
        self.detail_counts.replace(&held.details, &BTreeSet::new());
        let protocol = key.protocol.number();
        let service_port = &held.service_port;
        let frontends = service_port.frontends.iter();
        let members = service_port.cluster.iter().chain(&service_port.local);
        Some(Leftover {
            frontends: frontends.map(|f| FrontendKey::new(f.address, f.port, protocol)).collect(),
            members: members.map(|m| BackendKey::new(m.address, m.port, protocol)).collect(),
            draining: held.draining,
            details: held.details.iter().cloned().collect(),
            owner: key,
            retired: Some((held.index, held.regions)),
        })
    }

    /// What is to be looked up of a service port, once its backends have their indexes.
    fn details(&self, index: u32, protocol: u8, wanted: &ServicePort) -> BTreeSet<Detail> {
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

    /// What tunnels from other nodes lead to. Of two backends with one tag only one is: who wants
    /// the other gets that.
    fn targets(
        &self,
        service_port: u32,
        protocol: u8,
        wanted: &ServicePort,
    ) -> impl Iterator<Item = Detail> + use<> {
        let mut found = BTreeMap::new();
        if wanted.forwarding != Forwarding::Masquerade {
            let local = wanted.cluster.union(&wanted.local).filter(|member| member.local);
            for member in local {
                let key = BackendKey::new(member.address, member.port, protocol);
                if let Some(backend) = self.backends.index_of(&key) {
                    let target = Target { service_port, tag: key.tag().into() };
                    found.entry(target).or_insert(backend);
                }
            }
        }
        found.into_iter().map(|(target, backend)| Detail::Target { target, backend })
    }

    fn retire(&mut self, leftover: Leftover, plan: &mut Plan) {
        for &frontend in &leftover.frontends {
            self.retire_frontend(frontend, &leftover.owner, plan);
        }
        let held = self.held.get(&leftover.owner);
        let replaced =
            |detail: &Detail| held.is_some_and(|held| detail.is_replaced_in(&held.details));
        let gone = leftover.details.iter().filter(|detail| !replaced(detail)).cloned();
        plan.retire.extend(gone.map(Step::RemoveDetail));
        if let Some((index, regions)) = leftover.retired {
            plan.retire.push(Step::RemoveDetail(names::detail(index, &leftover.owner)));
            for scope in Scope::BOTH {
                self.empty_pool(index, scope, regions[scope as usize], plan);
            }
            self.indexes.give_back(index);
        }
        for &member in &leftover.members {
            self.backends.release(member, &mut self.bits, plan);
        }
        self.note_datagrams(&leftover, plan);
        for member in leftover.draining {
            self.backends.let_go(member, &mut self.bits, plan);
        }
    }

    /// A service port that the kernel doesn't hold yet, as an empty one that has its index.
    fn start(
        &mut self,
        key: &ServicePortKey,
        wanted: &ServicePort,
        plan: &mut Plan,
    ) -> Option<Held> {
        if let Some(held) = self.take_over(key, wanted) {
            return Some(held);
        }
        let untouched = self.indexes.untouched();
        let Some(index) = self.indexes.take() else {
            let all = self.room.service_ports;
            plan.lack(key, format!("all {all} service ports are in use; {MORE_SERVICE_PORTS}"));
            return None;
        };
        // The counters of an index that nobody has had yet are zero.
        if index < untouched || self.has_adopted {
            plan.prepare.push(Step::ResetServiceTraffic { index });
        }
        Some(Held::empty(index, [Region::EMPTY; 2]))
    }

    /// Writes a pool's table into a region of its own, and swaps the pool to it. What does not
    /// fit is taken out of `wanted`, so that it is tried again with the next change.
    fn refill(
        &mut self,
        index: u32,
        scope: Scope,
        protocol: u8,
        old: &Held,
        wanted: &mut Arc<ServicePort>,
        plan: &mut Plan,
    ) -> Region {
        let old_region = old.regions[scope as usize];
        let old_members = scope.members(&old.service_port);
        let members = scope.members(wanted);
        if old_members == members {
            return old_region;
        }
        let size = maglev::fitted_size(members.len());
        if size == 0 {
            self.empty_pool(index, scope, old_region, plan);
            return Region::EMPTY;
        }
        let Some(region) = self.regions.take(size) else {
            let full = format!(
                "no room for a table of {size} slots: the pool stays as it was; {MORE_ENDPOINTS}"
            );
            plan.lack(&scope, full);
            *scope.members_mut(Arc::make_mut(wanted)) = old_members.clone();
            return old_region;
        };
        let mut entries = Vec::with_capacity(members.len());
        let mut lacking = BTreeSet::new();
        for member in members {
            let key = BackendKey::new(member.address, member.port, protocol);
            let place = (member.local, member.node);
            match self.backends.acquire(key, place, &mut self.bits, plan) {
                Some(backend) => entries.push((key.identity(), backend)),
                None => {
                    let all = self.room.backends;
                    plan.lack(&key, format!("all {all} backends are in use; {MORE_ENDPOINTS}"));
                    lacking.insert(*member);
                }
            }
        }
        if !lacking.is_empty() {
            let members = scope.members_mut(Arc::make_mut(wanted));
            members.retain(|member| !lacking.contains(member));
        }
        let table = Table::maglev(region.size, entries);
        let pool = if table.is_empty() {
            Pool::default()
        } else {
            Pool { offset: region.offset, size: region.size }
        };
        plan.prepare.push(Step::WriteTable { offset: region.offset, table });
        plan.publish_pools.push(Step::SwapPool { index: scope.pool_index(index), pool });
        self.regions.give_back(old_region);
        region
    }

    fn empty_pool(&mut self, index: u32, scope: Scope, region: Region, plan: &mut Plan) {
        if region.size == 0 {
            return;
        }
        let pool = Pool::default();
        plan.retire.push(Step::SwapPool { index: scope.pool_index(index), pool });
        self.regions.give_back(region);
    }

    fn publish_frontend(
        &mut self,
        frontend: FrontendKey,
        owner: &ServicePortKey,
        kind: FrontendKind,
        value: layout::Frontend,
        plan: &mut Plan,
    ) {
        let owner = Owner { service_port: owner.clone(), kind };
        let old = self.owners.insert(frontend, owner);
        if old.is_none() && !frontend.is_node_port() {
            self.bits.add_destination(frontend.address, plan);
        }
        let was_cluster = old.is_some_and(|old| old.kind == FrontendKind::ClusterIp);
        match (was_cluster, kind == FrontendKind::ClusterIp) {
            (false, true) => self.addresses.add_cluster(frontend.address, plan),
            (true, false) => self.addresses.remove_cluster(frontend.address, plan),
            _ => {}
        }
        let value = layout::Frontend { kind: kind as u8, ..value };
        plan.publish_frontends.push(Step::SetFrontend { key: frontend, value });
    }

    fn retire_frontend(&mut self, frontend: FrontendKey, owner: &ServicePortKey, plan: &mut Plan) {
        if self.owner(&frontend) != Some(owner) {
            return;
        }
        let owned = self.owners.remove(&frontend);
        plan.retire.push(Step::RemoveFrontend { key: frontend });
        if owned.is_some_and(|owned| owned.kind == FrontendKind::ClusterIp) {
            self.addresses.remove_cluster(frontend.address, plan);
        }
        if !frontend.is_node_port() {
            self.bits.remove_destination(frontend.address, plan);
        }
    }
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

/// What all frontends of a service port have in common; the kind is each one's own.
fn frontend_value(index: u32, service_port: &ServicePort) -> layout::Frontend {
    layout::Frontend {
        service_port: index,
        cluster_pool: Scope::Cluster.pool_index(index),
        local_pool: Scope::Local.pool_index(index),
        // The API's bound, a day, fits by far.
        affinity: service_port.affinity.map_or(0, |time| time.as_secs() as u32),
        kind: 0,
        external_local: (service_port.external_policy == Policy::Local) as u8,
        internal_local: (service_port.internal_policy == Policy::Local) as u8,
        restricted: u8::from(!service_port.source_ranges.is_empty()),
        populated: u8::from(service_port.populated),
        forwarding: service_port.forwarding as u8,
        reserved: [0; 2],
    }
}
