//! Resolves the Services that have changed, settles conflicts between them, and plans and executes
//! the steps.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use lb_common::layout::FrontendKind;
use lb_kernel::{BacklogTables, clock_of_deadlines};
use lb_plan::{Change, Plan};
use lb_process::notices::NoticeReason;
use lb_rules::ipam::{self, api_server_service};
use lb_rules::model::{
    NodeContext, Resolved, ServiceName, ServicePort, ServicePortKey, has_lent_ports,
    resolve_service,
};
use lb_rules::store::Affected;
use lb_source::Extent;

use super::{Agent, Tally};

/// Limit of plans for one change, each with room that the previous one gave up.
const MOST_PLANS: usize = 8;

/// Seconds since the machine started.
pub(super) fn seconds_since_boot() -> u32 {
    let now = clock_of_deadlines().unwrap_or_default() / 1_000_000_000;
    u32::try_from(now).unwrap_or(u32::MAX)
}

/// How many service ports of a change that only adds some are planned at once.
pub(super) const PORTION: usize = 1_000;

/// A change that is planned at once, and the Services that it concerns: also those without service ports, whose problems
/// may have ended.
pub(super) struct Portion {
    pub(super) concerned: BTreeSet<ServiceName>,
    pub(super) change: Change,
}

impl<T: BacklogTables> Agent<T> {
    pub(super) fn work(&mut self) {
        let began = Instant::now();
        // The room that one plan gives up can be used by the next.
        for _ in 0..MOST_PLANS {
            let makes_room = match self.program() {
                Ok(makes_room) => makes_room,
                Err(error) => return self.fail(&error),
            };
            if !makes_room || self.lacking.is_empty() {
                break;
            }
            self.affected = Affected::Services(std::mem::take(&mut self.lacking));
        }
        self.succeed(began);
    }

    /// Plans all changes, and executes the plan; returns whether that has made room. What only adds service
    /// ports, as at the start, is planned in portions: the steps for many Services take much memory.
    fn program(&mut self) -> Result<bool> {
        let everything = self.collect_all();
        // All of them at once: SNAT must not use the NodePorts of the last portion, either.
        if let Some(ports) =
            self.node_ports.take_in(&everything.change.service_ports, &self.node.own_addresses)
        {
            self.outlets.set_node_ports(ports);
        }
        let most = if self.planner.only_adds(&everything.change) { PORTION } else { usize::MAX };
        let mut portions = everything.split(most);
        let (mut services, mut steps, mut makes_room) = (0, 0, false);
        let mut failed = None;
        while let Some(portion) = portions.pop_front() {
            let plan = self.plan(&portion.concerned, portion.change);
            if !plan.is_empty() {
                services += portion.concerned.len();
                steps += plan.steps().count();
            }
            makes_room |= plan.makes_room;
            let carried_out = self.tables.carry_out(&plan);
            self.report_set_aside();
            if let Err(error) = carried_out {
                failed = Some(error);
                break;
            }
        }
        // Planned when writing succeeds again.
        let rest = portions.into_iter().flat_map(|portion| portion.concerned).collect();
        self.affected = std::mem::take(&mut self.affected).and(Affected::Services(rest));
        if steps > 0 {
            tracing::info!(services, steps, "services changed");
        }
        failed.map_or(Ok(makes_room), Err)
    }

    fn plan(&mut self, concerned: &BTreeSet<ServiceName>, change: Change) -> Plan {
        self.tally.count(&change.service_ports);
        let keys: Vec<ServicePortKey> = change.service_ports.keys().cloned().collect();
        let plan = self.planner.plan(change);
        Tally::catalogue(keys.iter(), &self.planner, &self.outlets.metrics);
        self.report_lacking(concerned, &plan);
        plan
    }

    /// Resolves what has changed.
    fn collect_all(&mut self) -> Portion {
        let mut change = std::mem::take(&mut self.change);
        let affected = std::mem::take(&mut self.affected);
        let affected = affected.and(self.follow_lent_ports());
        let moved = self.store.take_moved_nodes();
        let all = affected == Affected::All || moved.contains(&self.node.name);
        change.now = seconds_since_boot();
        change.peers = (all || !moved.is_empty()).then(|| self.look_at_nodes());
        let services = match affected {
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
        for service in &concerned {
            self.collect(service, &mut change);
        }
        Portion { concerned, change }
    }

    /// Follows what this node lends of its own addresses. Returns the Services that this concerns.
    fn follow_lent_ports(&mut self) -> Affected {
        let is_known = self.synced >= Some(Extent::Pools);
        let own = self.store.node(&self.node.name).filter(|_| is_known);
        let lent = own.map(|node| {
            let api_servers = self.store.slices(&api_server_service());
            self.announcement_objects.pools().lent_by(node, api_servers)
        });
        if std::mem::replace(&mut self.node.lent_ports, lent.clone()) == lent {
            return Affected::default();
        }
        Affected::Services(self.store.services_on_nodes())
    }

    /// Reads the state of all nodes; returns their addresses.
    fn look_at_nodes(&mut self) -> BTreeSet<IpAddr> {
        let name = self.node.name.clone();
        self.node = NodeContext {
            forwarding: self.node.forwarding,
            has_tunnel_key: self.node.has_tunnel_key,
            own_addresses: std::mem::take(&mut self.node.own_addresses),
            external_ips: std::mem::take(&mut self.node.external_ips),
            lent_ports: self.node.lent_ports.take(),
            dead_nodes: std::mem::take(&mut self.node.dead_nodes),
            nodes: self.store.node_addresses(),
            ..NodeContext::of(&name, self.store.node(&name))
        };
        self.outlets.publish_nodes(&self.node.nodes);
        self.node.nodes.values().flat_map(|node| &node.0).copied().collect()
    }

    /// Resolves a Service again; returns the Services that this affects.
    fn resolve(&mut self, name: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(service) = self.store.service(name) else {
            return self.claims.set(name, None, None);
        };
        let created = service.metadata.creation_timestamp.as_ref();
        let created = created.map(|time| time.0.to_string());
        let resolved = resolve_service(service, &self.store.slices(name), &self.node);
        self.claims.set(name, created, Some(resolved))
    }

    fn collect(&mut self, name: &ServiceName, change: &mut Change) {
        let settled = self.claims.settled(name, &self.node);
        let service = self.store.service(name);
        let uid = service.and_then(|service| service.metadata.uid.as_deref()).unwrap_or_default();
        let is_assigned = service.is_some_and(ipam::is_marked);
        let labels = service.and_then(|service| service.metadata.labels.as_ref());
        let announced = announced_ports(service.is_some_and(has_lent_ports), &settled);
        self.announcing.set(name, (uid, labels), is_assigned, announced.iter());
        self.advertiser.set(name, labels, is_assigned, announced.iter());
        let (new, is_fixed) = self.invalid.replace_problems(name, settled.problems);
        for problem in new {
            self.outlets.post(&problem, NoticeReason::NotServed, &self.store);
        }
        if is_fixed {
            self.fixed.insert(name.clone(), NoticeReason::Served);
        }
        self.post_problems(name);
        let had_check = match settled.health_check {
            Some(check) => self.health_checks.insert(name.clone(), check),
            None => self.health_checks.remove(name),
        };
        if had_check.is_some() || settled.health_check.is_some() {
            self.health_checks_changed = true;
        }
        let keys: Box<[ServicePortKey]> =
            settled.service_ports.iter().map(|(key, _)| key.clone()).collect();
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
}

/// The service ports that are announced: of a Service on nodes without its load balancer addresses, which are theirs.
pub(super) fn announced_ports(is_on_nodes: bool, settled: &Resolved) -> Vec<Arc<ServicePort>> {
    let ports = settled.service_ports.iter().map(|(_, port)| Arc::clone(port));
    if !is_on_nodes {
        return ports.collect();
    }
    let without = |mut port: Arc<ServicePort>| {
        let frontends = &mut Arc::make_mut(&mut port).frontends;
        frontends.retain(|frontend| frontend.kind != FrontendKind::LoadBalancer);
        port
    };
    ports.map(without).collect()
}

impl Portion {
    /// In portions, each of which ends with the Service that makes it as large as that. The first one has everything
    /// that concerns no service port.
    pub(super) fn split(mut self, most: usize) -> VecDeque<Self> {
        let now = self.change.now;
        let mut ports = std::mem::take(&mut self.change.service_ports).into_iter().peekable();
        let mut portions = VecDeque::new();
        let mut last = self;
        while let Some((key, port)) = ports.next() {
            let service = key.service.clone();
            last.change.service_ports.insert(key, port);
            let is_full = last.change.service_ports.len() >= most;
            if let Some((next, _)) = ports.peek()
                && is_full
                && next.service != service
            {
                let concerned = last.concerned.split_off(&next.service);
                let change = Change { now, ..Change::default() };
                portions.push_back(std::mem::replace(&mut last, Self { concerned, change }));
            }
        }
        portions.push_back(last);
        portions
    }
}
