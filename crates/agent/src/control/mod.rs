//! From events to steps: stores what changes, plans it, and executes the plans. `planning` settles
//! conflicts and plans; `reporting` says what came of it.

mod planning;
mod reporting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use lb_common::layout::Forwarding;
use lb_kernel::{Backlog, BacklogTables};
use lb_plan::{Change, KnownHistory, Planner};
use lb_process::notices::NoticeReason;
use lb_rules::ipam::Pools;
use lb_rules::model::{
    AddressType, Claims, ExternalIpPolicy, HealthCheck, Kind, NodeContext, Object, ObjectRef,
    ServiceName, ServicePortKey,
};
use lb_rules::store::{Affected, Store};
use lb_source::{Event, Extent};
use lb_status::Changed;
use tokio::sync::mpsc;

use super::advertiser::Advertiser;
use super::announcement_objects::AnnouncementObjects;
use super::announcer::Announcing;
use super::latency::Latency;
use super::node_ports::NodePorts;
use super::outlets::Outlets;
use super::reported_problems::ReportedProblems;
use super::retry::Retry;
use super::tally::Tally;

/// The agent's state: objects, and what was planned.
pub struct Agent<T> {
    store: Store,
    announcement_objects: AnnouncementObjects,
    claims: Claims,
    planner: Planner,
    tables: Backlog<T>,
    node: NodeContext,
    /// Next hops depend on the destination only.
    shares_hops: bool,
    /// This machine's interfaces, by index.
    devices: BTreeMap<u32, lb_network::Device>,
    /// The Services that are to be planned.
    affected: Affected,
    /// Other changes that are not planned yet.
    change: Change,
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
    invalid: ReportedProblems,
    withheld: ReportedProblems,
    /// Services whose problems were fixed before the plan, and the reason to report when they are
    /// programmed.
    fixed: BTreeMap<ServiceName, NoticeReason>,
    latency: Latency,
    tally: Tally,
    node_ports: NodePorts,
    announcing: Announcing,
    advertiser: Advertiser,
    /// Which objects are all known.
    synced: Option<Extent>,
    outlets: Outlets,
}

impl<T: BacklogTables> Agent<T> {
    /// `forwarding`: how packets of clients outside reach other nodes' backends, unless a Service
    /// overrides it.
    pub fn with_forwarding(mut self, forwarding: Forwarding, has_tunnel_key: bool) -> Self {
        self.node.forwarding = forwarding;
        self.node.has_tunnel_key = has_tunnel_key;
        self
    }

    /// With the setting `external-ips`.
    pub(crate) fn with_external_ips(mut self, policy: ExternalIpPolicy) -> Self {
        self.node.external_ips = policy;
        self
    }

    /// The first tunnel key has been found: `auto` may use tunnels from now on.
    pub(crate) fn set_tunnel_key(&mut self, has_key: bool) {
        if std::mem::replace(&mut self.node.has_tunnel_key, has_key) != has_key {
            self.program_changes(Affected::All);
        }
    }

    /// Sets endpoints on these nodes aside, and gives back those of nodes that are no longer among them.
    pub(crate) fn set_dead_nodes(&mut self, dead: BTreeSet<String>) {
        let before = std::mem::replace(&mut self.node.dead_nodes, dead);
        let changed: BTreeSet<String> =
            before.symmetric_difference(&self.node.dead_nodes).cloned().collect();
        if changed.is_empty() {
            return;
        }
        self.program_changes(Affected::Services(self.store.services_on(&changed)));
        for name in changed.iter().filter(|name| self.store.node(name).is_some()) {
            let reason = match self.node.dead_nodes.contains(name) {
                true => NoticeReason::NodeSetAside,
                false => NoticeReason::NodeGivenBack,
            };
            self.outlets.post_node(name, reason, &self.store);
        }
    }

    /// With pools of addresses that no object defines.
    pub(crate) fn with_pools(mut self, pools: Pools) -> Self {
        self.announcement_objects = AnnouncementObjects::with_pools(pools);
        self
    }

    pub fn new(node_name: &str, planner: Planner, tables: T, outlets: Outlets) -> Self {
        Self {
            store: Store::default(),
            announcement_objects: AnnouncementObjects::default(),
            claims: Claims::default(),
            planner,
            tables: Backlog::new(tables),
            node: NodeContext::of(node_name, None),
            shares_hops: false,
            devices: BTreeMap::new(),
            affected: Affected::default(),
            change: Change::default(),
            steps_retry: Retry::default(),
            network_retry: Retry::default(),
            programmed: BTreeMap::new(),
            programmed_service_ports: 0,
            health_checks: BTreeMap::new(),
            health_checks_changed: false,
            lacking: BTreeSet::new(),
            invalid: ReportedProblems::default(),
            withheld: ReportedProblems::default(),
            fixed: BTreeMap::new(),
            latency: Latency::new(SystemTime::now()),
            tally: Tally::default(),
            node_ports: NodePorts::default(),
            announcing: Announcing::default(),
            advertiser: Advertiser::default(),
            synced: None,
            outlets,
        }
    }

    /// Whether kubelet has reported that this machine shuts down.
    pub fn is_shutting_down(&self) -> bool {
        self.store.node(&self.node.name).is_some_and(|node| node.is_shutting_down)
    }

    /// The number of programmed Services and service ports.
    pub(crate) fn programmed_counts(&self) -> (usize, usize) {
        (self.programmed.len(), self.programmed_service_ports)
    }

    /// How many steps have been executed since the agent started.
    pub fn carried_out(&self) -> u64 {
        self.tables.carried_out()
    }

    /// The number of Services of which something does not fit.
    pub fn lacking(&self) -> usize {
        self.lacking.len()
    }

    /// What this node knows of the earlier owners of slots.
    pub fn known_history(&self) -> Vec<KnownHistory> {
        self.planner.known_history(planning::seconds_since_boot())
    }

    /// Whether this node knows the earlier owner of any slot.
    pub(crate) fn has_history(&self) -> bool {
        self.planner.slots_with_history() > 0
    }

    /// Adds what another node knows of the earlier owners of slots.
    pub fn learn_history(&mut self, known: Vec<KnownHistory>) {
        let before = self.planner.slots_with_history();
        self.change.known_history.extend(known);
        self.program_changes(Affected::default());
        let after = self.planner.slots_with_history();
        if after > before {
            let slots = after - before;
            tracing::info!(slots, "earlier owners of slots learned from another node");
        }
    }

    /// An address of each other node.
    pub(crate) fn other_nodes(&self) -> Vec<IpAddr> {
        let nodes = self.store.node_addresses().into_iter();
        let others = nodes.filter(|(name, _)| *name != self.node.name);
        others.filter_map(|(_, addresses)| addresses.0.first().copied()).collect()
    }

    /// Handles an event, and all that are queued behind it as one change. A single event is not
    /// delayed.
    pub fn take_in(&mut self, first: Event, events: &mut mpsc::UnboundedReceiver<Event>) {
        self.outlets.health.note_change(Instant::now());
        let mut affected = self.store_event(first);
        while let Ok(event) = events.try_recv() {
            affected = affected.and(self.store_event(event));
        }
        self.program_changes(affected);
    }

    /// Stores all queued events without a plan.
    pub(crate) fn store_pending(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) {
        while let Ok(event) = events.try_recv() {
            drop(self.store_event(event));
        }
    }

    /// All Services, endpoints and Nodes.
    pub fn objects(&self) -> &Store {
        &self.store
    }

    /// Handles a change of the network.
    pub(crate) fn take_in_network(&mut self, event: lb_network::NetworkEvent) {
        use lb_network::NetworkEvent::{Devices, NodeAddresses, OwnAddresses};
        let concerns_services = matches!(event, Devices(_) | NodeAddresses(_) | OwnAddresses(_));
        self.note_network(event);
        if concerns_services {
            self.program_changes(Affected::default());
        }
    }

    /// Stores a change of the network without a plan: before all Services are known, one would remove those that are
    /// not.
    pub(crate) fn note_network(&mut self, event: lb_network::NetworkEvent) {
        match event {
            lb_network::NetworkEvent::NodeAddresses(addresses) => {
                self.note_node_addresses(addresses)
            }
            lb_network::NetworkEvent::OwnAddresses(addresses) => self.note_own_addresses(addresses),
            lb_network::NetworkEvent::Devices(devices) => self.note_devices(devices),
            lb_network::NetworkEvent::SharedHops(shared) => self.share_hops(shared),
            lb_network::NetworkEvent::Epoch => self.tables.tables_mut().next_epoch(),
            // Handled by the owner of the links.
            lb_network::NetworkEvent::Attachments(_) => {}
        }
    }

    /// Whether next hops depend on the destination only.
    pub fn share_hops(&mut self, shared: bool) {
        self.shares_hops = shared;
        self.renew_epoch_lease();
    }

    /// Without a lease, programs do not rely on the agent to report changes of the network.
    pub(crate) fn renew_epoch_lease(&mut self) {
        self.outlets.renew_beat();
        self.tables.tables_mut().lease_epoch(self.shares_hops);
    }

    pub fn end_epoch_lease(&mut self) {
        self.tables.tables_mut().end_epoch_lease();
    }

    /// Handles changes of this machine's interfaces; their addresses are left for the next plan.
    /// Must get all interfaces before the first plan, which retires entries that it does not know.
    pub(crate) fn note_devices(&mut self, changed: BTreeMap<u32, Option<lb_network::Device>>) {
        self.tables.set_devices(changed.clone());
        self.write_network();
        for (index, device) in changed {
            match device {
                Some(device) => self.devices.insert(index, device),
                None => self.devices.remove(&index),
            };
        }
        let addresses = |device: &lb_network::Device| {
            [device.v4.map(IpAddr::V4), device.v6.map(IpAddr::V6)].into_iter().flatten()
        };
        self.change.snat_addresses = Some(self.devices.values().flat_map(addresses).collect());
    }

    /// Handles a change of the addresses with NodePorts, which are left for the next plan.
    pub(crate) fn note_node_addresses(&mut self, mut addresses: BTreeSet<IpAddr>) {
        self.tables.set_node_addresses(addresses.clone());
        self.write_network();
        // Packets never match these: they are for the sockets of processes.
        addresses.retain(|address| !address.is_loopback());
        self.outlets.set_node_addresses(addresses.clone());
        self.change.node_addresses = Some(addresses);
    }

    /// Leaves all addresses of this node for the next plan, and the Services whose ClusterIP is no longer, or is now,
    /// that of a server on this node.
    pub(crate) fn note_own_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        let changed: BTreeSet<IpAddr> =
            self.node.own_addresses.symmetric_difference(&addresses).copied().collect();
        let services = self.store.services_at(&changed);
        if let Some(first) = services.first() {
            let count = services.len();
            tracing::info!(count, %first, "interfaces of this node got or lost ClusterIPs of Services");
        }
        let services = Affected::Services(services);
        let services = services.and(Affected::Services(self.store.services_on_nodes()));
        self.affected = std::mem::take(&mut self.affected).and(services);
        self.node.own_addresses.clone_from(&addresses);
        self.change.own_addresses = Some(addresses);
    }

    /// Logs whose ClusterIPs are left to this node.
    pub(crate) fn report_left_to_node(&self) {
        let services = self.store.services_at(&self.node.own_addresses);
        if let Some(first) = services.first() {
            let count = services.len();
            tracing::info!(count, %first, "ClusterIPs of Services are left to interfaces of this node");
        }
    }

    pub fn store_event(&mut self, event: Event) -> Affected {
        match event {
            Event::Applied(mut object) => {
                self.look_at(&object);
                if let Object::Node(node) = &mut object
                    && node.name != self.node.name
                {
                    // Thousands of Nodes have many labels.
                    (node.labels, node.taints) = (BTreeMap::new(), Vec::new());
                }
                self.announcement_objects.apply(&object);
                self.store.apply(object)
            }
            Event::Deleted(reference) => {
                self.count_change(reference.kind);
                if self.is_our_node(&reference) {
                    self.outlets.health.set_node_eligible(false);
                    self.note_announcing_changed();
                }
                self.announcement_objects.delete(&reference);
                self.store.delete(&reference)
            }
            Event::Together(events) => events
                .into_iter()
                .fold(Affected::default(), |affected, event| affected.and(self.store_event(event))),
            Event::Problem(problem) => {
                self.outlets.post(&problem, NoticeReason::NotServed, &self.store);
                Affected::default()
            }
            Event::Synced(extent) => {
                self.synced = Some(extent);
                Affected::default()
            }
        }
    }

    /// Updates latency, health and metrics for an object, before it replaces its previous version.
    fn look_at(&mut self, object: &Object) {
        let reference = object.reference();
        self.count_change(reference.kind);
        match object {
            Object::EndpointSlice(slice) => {
                let before = self.store.slice(&reference.namespace, &reference.name);
                let before = before.and_then(|slice| slice.trigger_time);
                if let AddressType::Of(family) = slice.address_type {
                    self.latency.come(family, before, slice.trigger_time);
                }
            }
            // A kubelet updates its Node now and then, and mostly fields that are not held.
            Object::Node(node)
                if self.is_our_node(&reference) && self.store.node(&node.name) != Some(node) =>
            {
                self.outlets.health.set_node_eligible(node.is_eligible);
                self.note_announcing_changed();
            }
            _ => {}
        }
    }

    /// Pools, peers or this node have changed: each concerns the announcements of all Services.
    fn note_announcing_changed(&mut self) {
        self.announcing.note_change();
        self.advertiser.note_change();
    }

    fn count_change(&self, kind: Kind) {
        let what = match kind {
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
    pub fn program_changes(&mut self, affected: Affected) {
        self.affected = std::mem::take(&mut self.affected).and(affected);
        self.outlets.health.note_change(Instant::now());
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
}

#[cfg(test)]
mod tests;
