//! From events to steps: stores, resolves and plans changes, settles conflicts, and executes the
//! plans.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use lb_common::layout::Forwarding;
use tokio::sync::mpsc;

use super::advertiser::Advertiser;
use super::announcer::Announcing;
use super::complaints::Complaints;
use super::latency::Latency;
use super::node_ports::NodePorts;
use super::outlets::Outlets;
use super::retry::Retry;
use super::tally::Tally;
use crate::ipam::{self, Pools};
use crate::kernel::{Backlog, Write, clock_of_deadlines};
use crate::model::{
    AddressType, Claims, HealthCheck, Kind, NodeContext, Object, ObjectRef, Problem, ServiceName,
    ServicePortKey, resolve,
};
use crate::network;
use crate::notices::Reason;
use crate::plan::{Change, Plan, Planner};
use crate::serve::Changed;
use crate::source::Event;
use crate::store::{Affected, Store};

/// Limit of plans for one change, each with room that the previous one gave up.
const MOST_PLANS: usize = 8;

/// The agent's state: objects, and what was planned.
pub struct Agent<T> {
    store: Store,
    claims: Claims,
    planner: Planner,
    tables: Backlog<T>,
    node: NodeContext,
    /// This machine's interfaces, by index.
    devices: BTreeMap<u32, network::Device>,
    /// Changes that are not planned yet.
    unplanned: Unplanned,
    /// For steps. While they fail, nothing new is planned.
    steps_retry: Retry,
    /// For interfaces and addresses of this machine.
    network_retry: Retry,
    /// The planned service ports of each Service.
    programmed: BTreeMap<ServiceName, Box<[ServicePortKey]>>,
    /// Their total number, which is reported with every change.
    programmed_service_ports: usize,
    health_checks: BTreeMap<ServiceName, HealthCheck>,
    /// Whether they, or other reported data of their Services, may have changed.
    health_checks_changed: bool,
    /// Services for which there was no room.
    lacking: BTreeSet<ServiceName>,
    invalid: Complaints,
    withheld: Complaints,
    /// Services whose problems were fixed before the plan, and the reason to report when they are
    /// programmed.
    fixed: BTreeMap<ServiceName, Reason>,
    latency: Latency,
    tally: Tally,
    node_ports: NodePorts,
    announcing: Announcing,
    advertiser: Advertiser,
    outlets: Outlets,
}

#[derive(Default)]
struct Unplanned {
    services: Affected,
    node_addresses: Option<BTreeSet<IpAddr>>,
    snat_addresses: Option<BTreeSet<IpAddr>>,
}

impl<T: Write> Agent<T> {
    /// `forwarding`: how packets of clients outside reach other nodes' backends, unless a Service
    /// overrides it.
    pub fn with_forwarding(mut self, forwarding: Forwarding, has_tunnel_key: bool) -> Self {
        self.node.forwarding = forwarding;
        self.node.has_tunnel_key = has_tunnel_key;
        self
    }

    /// The first tunnel key has been found: `auto` may use tunnels from now on.
    pub fn set_tunnel_key(&mut self, has_key: bool) {
        if std::mem::replace(&mut self.node.has_tunnel_key, has_key) != has_key {
            self.program_changes(Affected::All, None);
        }
    }

    /// With pools of addresses that no object defines.
    pub fn with_pools(mut self, pools: Pools) -> Self {
        self.store = Store::with_pools(pools);
        self
    }

    pub fn new(node_name: &str, planner: Planner, tables: T, outlets: Outlets) -> Self {
        Self {
            store: Store::default(),
            claims: Claims::default(),
            planner,
            tables: Backlog::new(tables),
            node: NodeContext::of(node_name, None),
            devices: BTreeMap::new(),
            unplanned: Unplanned::default(),
            steps_retry: Retry::default(),
            network_retry: Retry::default(),
            programmed: BTreeMap::new(),
            programmed_service_ports: 0,
            health_checks: BTreeMap::new(),
            health_checks_changed: false,
            lacking: BTreeSet::new(),
            invalid: Complaints::default(),
            withheld: Complaints::default(),
            fixed: BTreeMap::new(),
            latency: Latency::new(SystemTime::now()),
            tally: Tally::default(),
            node_ports: NodePorts::default(),
            announcing: Announcing::default(),
            advertiser: Advertiser::default(),
            outlets,
        }
    }

    /// The number of programmed Services and service ports.
    pub fn programmed_counts(&self) -> (usize, usize) {
        (self.programmed.len(), self.programmed_service_ports)
    }

    /// The number of Services of which something does not fit.
    pub fn lacking(&self) -> usize {
        self.lacking.len()
    }

    /// Handles an event, and all that are queued behind it as one change. A single event is not
    /// delayed.
    pub fn take_in(&mut self, first: Event, events: &mut mpsc::UnboundedReceiver<Event>) {
        self.outlets.health.changed(Instant::now());
        let mut affected = self.store_event(first);
        while let Ok(event) = events.try_recv() {
            affected = affected.and(self.store_event(event));
        }
        self.program_changes(affected, None);
    }

    /// Handles a change of the network.
    pub fn take_in_network(&mut self, event: network::Event) {
        match event {
            network::Event::NodeAddresses(addresses) => {
                self.program_changes(Affected::default(), Some(addresses));
            }
            network::Event::Devices(devices) => self.change_devices(devices),
            network::Event::SharedHops(shared) => self.share_hops(shared),
            network::Event::Epoch => self.tables.tables_mut().next_epoch(),
            // Handled by the owner of the links.
            network::Event::Attachments(_) => {}
        }
    }

    /// Whether next hops depend on the destination only.
    pub fn share_hops(&mut self, shared: bool) {
        self.tables.tables_mut().share_hops(shared);
    }

    fn change_devices(&mut self, changed: BTreeMap<u32, Option<network::Device>>) {
        self.note_devices(changed);
        self.program_changes(Affected::default(), None);
    }

    /// Handles changes of this machine's interfaces; their addresses are left for the next plan.
    /// Must get all interfaces before the first plan, which retires entries that it does not know.
    pub fn note_devices(&mut self, changed: BTreeMap<u32, Option<network::Device>>) {
        self.tables.set_devices(changed.clone());
        self.write_network();
        for (index, device) in changed {
            match device {
                Some(device) => self.devices.insert(index, device),
                None => self.devices.remove(&index),
            };
        }
        let addresses = |device: &network::Device| {
            [device.v4.map(IpAddr::V4), device.v6.map(IpAddr::V6)].into_iter().flatten()
        };
        self.unplanned.snat_addresses = Some(self.devices.values().flat_map(addresses).collect());
    }

    pub fn store_event(&mut self, event: Event) -> Affected {
        match event {
            Event::Applied(mut object) => {
                self.look_at(&object);
                if let Object::Node(node) = &mut object
                    && node.name != self.node.name
                {
                    // Thousands of Nodes have many labels.
                    node.labels = BTreeMap::new();
                }
                self.store.apply(object)
            }
            Event::Deleted(reference) => {
                self.note_change(reference.kind);
                if self.is_our_node(&reference) {
                    self.outlets.health.set_node_eligible(false);
                }
                self.store.delete(&reference)
            }
            Event::Together(events) => events
                .into_iter()
                .fold(Affected::default(), |affected, event| affected.and(self.store_event(event))),
            Event::Problem(problem) => {
                self.outlets.post(&problem, Reason::NotServed, &self.store);
                Affected::default()
            }
            Event::Synced => Affected::default(),
        }
    }

    /// Updates latency, health and metrics for an object, before it replaces its previous version.
    fn look_at(&mut self, object: &Object) {
        let reference = object.reference();
        self.note_change(reference.kind);
        match object {
            Object::EndpointSlice(slice) => {
                let before = self.store.slice(&reference.namespace, &reference.name);
                let before = before.and_then(|slice| slice.trigger_time);
                if let AddressType::Of(family) = slice.address_type {
                    self.latency.come(family, before, slice.trigger_time);
                }
            }
            Object::Node(node) if self.is_our_node(&reference) => {
                self.outlets.health.set_node_eligible(node.is_eligible);
            }
            _ => {}
        }
    }

    fn note_change(&mut self, kind: Kind) {
        self.advertiser.note_change(kind);
        let what = match kind {
            Kind::AddressPool | Kind::IpAddressPool | Kind::L2Advertisement | Kind::Node => {
                return self.announcing.note_change();
            }
            Kind::Service => Changed::Service,
            Kind::EndpointSlice | Kind::Endpoints => Changed::Endpoints,
            _ => return,
        };
        self.outlets.metrics.changed(what, SystemTime::now());
    }

    fn is_our_node(&self, reference: &ObjectRef) -> bool {
        reference.kind == Kind::Node && reference.name == self.node.name
    }

    /// Plans and executes what has changed. While earlier steps fail, nothing new is planned:
    /// changes are collected, and planned as one when the steps succeed.
    pub fn program_changes(
        &mut self,
        affected: Affected,
        node_addresses: Option<BTreeSet<IpAddr>>,
    ) {
        self.unplanned.services = std::mem::take(&mut self.unplanned.services).and(affected);
        if let Some(addresses) = node_addresses {
            self.outlets.set_node_addresses(addresses.clone());
            self.tables.set_node_addresses(addresses.clone());
            self.write_network();
            self.unplanned.node_addresses = Some(addresses);
        }
        self.outlets.health.changed(Instant::now());
        if self.steps_retry.at().is_none() {
            self.work();
        }
    }

    /// When to call `retry`; `None` if nothing has failed.
    pub fn retry_at(&self) -> Option<Instant> {
        [self.steps_retry.at(), self.network_retry.at()].into_iter().flatten().min()
    }

    /// Retries failed writes to the kernel.
    pub fn retry(&mut self) {
        if self.network_retry.at().is_some() {
            self.write_network();
        }
        if self.steps_retry.at().is_some() {
            match self.tables.retry() {
                Ok(()) => self.work(),
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Writes interfaces and addresses of this machine. Failed writes are retried, and delay no
    /// Service.
    fn write_network(&mut self) {
        let written = self.tables.write_network().map_err(|error| format!("{error:#}"));
        self.outlets.condition.set_network(written.clone().err());
        match written {
            Ok(()) if self.network_retry.succeed() => {
                tracing::info!("interfaces and node addresses written to the maps again");
            }
            Ok(()) => {}
            Err(error) => {
                self.outlets.metrics.write_failed();
                if self.network_retry.fail(Instant::now()) {
                    tracing::error!(error, "interfaces or node addresses not written; retrying");
                } else {
                    tracing::debug!(error, "interfaces or node addresses still not written");
                }
            }
        }
    }

    fn work(&mut self) {
        let began = Instant::now();
        // The room that one plan gives up can be used by the next.
        for _ in 0..MOST_PLANS {
            let unplanned = std::mem::take(&mut self.unplanned);
            let plan = self.plan(unplanned);
            let carried_out = self.tables.carry_out(&plan);
            self.report_set_aside();
            if let Err(error) = carried_out {
                return self.fail(&error);
            }
            if !plan.makes_room || self.lacking.is_empty() {
                break;
            }
            self.unplanned.services = Affected::Services(std::mem::take(&mut self.lacking));
        }
        self.succeed(began);
    }

    fn plan(&mut self, Unplanned { services, node_addresses, snat_addresses }: Unplanned) -> Plan {
        let moved = self.store.take_moved_nodes();
        let all = services == Affected::All || moved.contains(&self.node.name);
        let peers = (all || !moved.is_empty()).then(|| self.look_at_nodes());
        let services = match services {
            Affected::Services(mut services) if !all => {
                services.extend(self.store.services_on(&moved));
                services
            }
            _ => self.store.services().chain(self.programmed.keys()).cloned().collect(),
        };
        let mut concerned = BTreeSet::new();
        for service in &services {
            concerned.extend(self.resolve(service));
        }
        let now = clock_of_deadlines().unwrap_or_default() / 1_000_000_000;
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        let service_ports = BTreeMap::new();
        let mut change = Change { service_ports, node_addresses, snat_addresses, peers, now };
        for service in &concerned {
            self.collect(service, &mut change);
        }
        self.tally.count(&change.service_ports);
        if let Some(ports) = self.node_ports.take_in(&change.service_ports) {
            self.outlets.set_node_ports(ports);
        }
        let keys: Vec<ServicePortKey> = change.service_ports.keys().cloned().collect();
        let plan = self.planner.plan(change);
        Tally::catalogue(keys.iter(), &self.planner, &self.outlets.metrics);
        self.report_lacking(&concerned, &plan);
        if !plan.is_empty() {
            let (services, steps) = (concerned.len(), plan.steps().count());
            tracing::info!(services, steps, "services changed");
        }
        plan
    }

    /// Reads the state of all nodes; returns their addresses.
    fn look_at_nodes(&mut self) -> BTreeSet<IpAddr> {
        let name = self.node.name.clone();
        self.node = NodeContext {
            forwarding: self.node.forwarding,
            has_tunnel_key: self.node.has_tunnel_key,
            nodes: self.store.node_addresses(),
            ..NodeContext::of(&name, self.store.node(&name))
        };
        self.node.nodes.values().flat_map(|node| &node.0).copied().collect()
    }

    /// Resolves a Service again; returns the Services that this affects.
    fn resolve(&mut self, name: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(service) = self.store.service(name) else {
            return self.claims.set(name, None, None);
        };
        let created = service.metadata.creation_timestamp.as_ref();
        let created = created.map(|time| time.0.to_string());
        let resolved = resolve(service, &self.store.slices(name), &self.node);
        self.claims.set(name, created, Some(resolved))
    }

    fn collect(&mut self, name: &ServiceName, change: &mut Change) {
        let settled = self.claims.settled(name);
        let service = self.store.service(name);
        let uid = service.and_then(|service| service.metadata.uid.as_deref()).unwrap_or_default();
        let is_assigned = service.is_some_and(ipam::is_marked);
        self.announcing.set(name, uid, is_assigned, settled.service_ports.values());
        self.advertiser.set(name, is_assigned, settled.service_ports.values());
        let (new, is_fixed) = self.invalid.set(name, settled.problems);
        for problem in new {
            self.outlets.post(&problem, Reason::NotServed, &self.store);
        }
        if is_fixed {
            self.fixed.insert(name.clone(), Reason::Served);
        }
        self.post_problems(name);
        let had_check = match settled.health_check {
            Some(check) => self.health_checks.insert(name.clone(), check),
            None => self.health_checks.remove(name),
        };
        if had_check.is_some() || settled.health_check.is_some() {
            self.health_checks_changed = true;
        }
        let keys: Box<[ServicePortKey]> = settled.service_ports.keys().cloned().collect();
        self.programmed_service_ports += keys.len();
        let before = if keys.is_empty() {
            self.programmed.remove(name)
        } else {
            self.programmed.insert(name.clone(), keys)
        };
        let before = before.unwrap_or_default();
        self.programmed_service_ports -= before.len();
        let gone = before.into_iter().map(|key| (key, None));
        change.service_ports.extend(gone);
        let wanted = settled.service_ports.into_iter().map(|(key, port)| (key, Some(port)));
        change.service_ports.extend(wanted);
    }

    /// Reports and stores what does not fit.
    fn report_lacking(&mut self, concerned: &BTreeSet<ServiceName>, plan: &Plan) {
        let mut problems: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
        for problem in &plan.problems {
            problems.entry(problem.object.clone()).or_default().push(problem.clone());
        }
        let lacking: BTreeSet<&ServiceName> = plan.lacking.iter().map(|key| &key.service).collect();
        for service in concerned {
            let problems = problems.remove(&format!("Service {service}")).unwrap_or_default();
            let lacks = lacking.contains(service);
            let reason = if lacks { Reason::NoRoom } else { Reason::NotServed };
            let (new, is_fixed) = self.withheld.set(service, problems);
            for problem in new {
                self.outlets.post(&problem, reason, &self.store);
            }
            self.post_problems(service);
            let lacked = self.lacking.remove(service);
            if is_fixed {
                let reason = if lacked { Reason::RoomFound } else { Reason::Served };
                self.fixed.insert(service.clone(), reason);
            }
        }
        self.lacking.extend(lacking.into_iter().cloned());
    }

    fn post_problems(&self, service: &ServiceName) {
        let all = self.invalid.of(service).chain(self.withheld.of(service));
        self.outlets.condition.set_problems(service, all.map(ToString::to_string).collect());
    }

    /// Reports Services without problems that had some before, now that they are programmed.
    fn post_fixed(&mut self) {
        for (service, reason) in std::mem::take(&mut self.fixed) {
            let is_wrong = self.invalid.of(&service).chain(self.withheld.of(&service)).count() > 0;
            if !is_wrong && self.programmed.contains_key(&service) {
                self.outlets.post_fixed(&service, reason, &self.store);
            }
        }
    }

    /// Reports entries for which the maps have no room.
    fn report_set_aside(&mut self) {
        let new = self.tables.newly_set_aside();
        for problem in self.tally.set_aside(&new, &self.planner) {
            self.outlets.post(&problem, Reason::NoRoom, &self.store);
        }
    }

    /// How many steps have been executed since the agent started.
    pub fn carried_out(&self) -> u64 {
        self.tables.carried_out()
    }

    fn fail(&mut self, error: &anyhow::Error) {
        self.outlets.metrics.set_steps(self.carried_out());
        self.outlets.metrics.write_failed();
        self.outlets.condition.waits(format!("{error:#}"));
        let error = format!("{error:#}");
        if self.steps_retry.fail(Instant::now()) {
            tracing::error!(error, "map write failed; later changes wait until a retry succeeds");
        } else {
            tracing::debug!(error, "map write still failing");
        }
    }

    fn succeed(&mut self, began: Instant) {
        if self.steps_retry.succeed() {
            tracing::info!("map writes restored; all changes are programmed");
        }
        let now = SystemTime::now();
        if std::mem::take(&mut self.health_checks_changed) {
            self.outlets.check_health(&self.health_checks, &self.store);
        }
        // What is not programmed yet must attract no packets.
        let node = self.store.node(&self.node.name);
        if let Some(wanted) = self.announcing.take(self.store.pools(), node) {
            self.outlets.announce(wanted);
        }
        self.advertiser.tell(&self.node.name, &self.store, &self.outlets);
        self.outlets.health.record_programmed(now);
        self.post_fixed();
        let metrics = &self.outlets.metrics;
        metrics.set_steps(self.tables.carried_out());
        metrics.record_programmed(began.elapsed(), now);
        for (family, latency) in self.latency.record_programmed(now) {
            metrics.programmed(family, latency);
        }
        metrics.set_problems(self.invalid.services());
        self.outlets
            .condition
            .record_programmed(self.programmed_counts(), self.tables.without_room());
        let without_room = self.tables.without_room();
        self.tally.export(&self.planner, self.lacking.len(), without_room, metrics);
    }
}

#[cfg(test)]
mod tests;
