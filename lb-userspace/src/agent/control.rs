//! From events to steps: what changed is stored, resolved, settled, planned and carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tokio::sync::mpsc;

use crate::kernel::Tables;
use crate::model::{Claims, NodeContext, Problem, ServiceName, ServicePortKey, resolve};
use crate::plan::{Change, Planner};
use crate::source::Event;
use crate::store::{Affected, Store};

/// What the agent knows and has planned.
pub struct Agent {
    store: Store,
    claims: Claims,
    planner: Planner,
    tables: Tables,
    node: NodeContext,
    /// The service ports of each Service that have been planned.
    in_force: BTreeMap<ServiceName, BTreeSet<ServicePortKey>>,
    /// What has been complained about and is still wrong, by Service.
    reported: BTreeMap<ServiceName, BTreeSet<Problem>>,
}

impl Agent {
    pub fn new(node_name: &str, planner: Planner, tables: Tables) -> Self {
        Self {
            store: Store::default(),
            claims: Claims::default(),
            planner,
            tables,
            node: NodeContext::of(node_name, None),
            in_force: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }

    /// How many Services and service ports are in force.
    pub fn in_force(&self) -> (usize, usize) {
        (self.in_force.len(), self.in_force.values().map(BTreeSet::len).sum())
    }

    /// Takes in an event and all that wait behind it: a burst becomes one change, a lone event
    /// waits for nothing.
    pub fn take_in(&mut self, first: Event, events: &mut mpsc::UnboundedReceiver<Event>) {
        let mut affected = self.store_event(first);
        while let Ok(event) = events.try_recv() {
            affected = both(affected, self.store_event(event));
        }
        self.put_in_force(affected, None);
    }

    pub fn store_event(&mut self, event: Event) -> Affected {
        match event {
            Event::Applied(object) => self.store.apply(object),
            Event::Deleted(reference) => self.store.delete(&reference),
            Event::Problem(problem) => {
                tracing::warn!("{problem}");
                Affected::Services(BTreeSet::new())
            }
            Event::Synced => Affected::Services(BTreeSet::new()),
        }
    }

    pub fn put_in_force(&mut self, affected: Affected, node_addresses: Option<BTreeSet<IpAddr>>) {
        let services = match affected {
            Affected::Services(services) => services,
            Affected::All => {
                let name = self.node.name.clone();
                self.node = NodeContext::of(&name, self.store.node(&name));
                self.store.services().chain(self.in_force.keys()).cloned().collect()
            }
        };
        let mut concerned = BTreeSet::new();
        for service in &services {
            concerned.extend(self.resolve(service));
        }
        let mut change = Change { node_addresses, ..Change::default() };
        for service in &concerned {
            self.collect(service, &mut change);
        }
        let plan = self.planner.plan(change);
        for problem in &plan.problems {
            tracing::error!("{problem}");
        }
        for step in plan.steps() {
            if let Err(error) = self.tables.apply(step) {
                tracing::error!("{error:#}");
            }
        }
        if !plan.is_empty() {
            tracing::info!("{} Services changed: {} steps", concerned.len(), plan.steps().count());
        }
    }

    /// Works out anew what a Service means; returns whom that concerns.
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
        self.report(name, settled.problems);
        let keys: BTreeSet<ServicePortKey> = settled.service_ports.keys().cloned().collect();
        let before = if keys.is_empty() {
            self.in_force.remove(name)
        } else {
            self.in_force.insert(name.clone(), keys)
        };
        let gone = before.into_iter().flatten().map(|key| (key, None));
        change.service_ports.extend(gone);
        let wanted = settled.service_ports.into_iter().map(|(key, port)| (key, Some(port)));
        change.service_ports.extend(wanted);
    }

    /// Complains once about each thing, and again if it was mended in between.
    fn report(&mut self, service: &ServiceName, problems: Vec<Problem>) {
        let now: BTreeSet<Problem> = problems.into_iter().collect();
        let before = self.reported.remove(service).unwrap_or_default();
        for problem in now.difference(&before) {
            tracing::warn!("{problem}");
        }
        if !now.is_empty() {
            self.reported.insert(service.clone(), now);
        }
    }
}

fn both(first: Affected, second: Affected) -> Affected {
    match (first, second) {
        (Affected::Services(mut first), Affected::Services(second)) => {
            first.extend(second);
            Affected::Services(first)
        }
        _ => Affected::All,
    }
}
