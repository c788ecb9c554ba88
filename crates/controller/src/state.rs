//! The objects, and what their statuses lack. No I/O.
//!
//! A process that does not assign addresses only keeps the objects. When it begins to, the statuses say what was
//! assigned: nothing else is handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::ipam::{
    AssignmentOutcome, AssignmentReason as Became, EndpointNodes, Ipam, IpamSettings, PoolName,
    Pools, Range,
};
use lb_rules::kinds::AddressPoolStatus;
use lb_rules::model::{AddressFamily, Kind, Object, ObjectRef, Problem, ServiceName};
use lb_source::Event;
use serde_json::{Value, json};

use super::metrics::AssignmentMetrics;
use super::status;

/// How long an older version of a Service is ignored that arrives after a newer one was written.
const STALE_VERSION_LIFETIME: Duration = Duration::from_secs(30);

#[cfg(test)]
thread_local! {
    /// How many patches were built.
    pub(crate) static PATCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) struct AssignmentState {
    settings: IpamSettings,
    ranges: Vec<Range>,
    notices: Arc<dyn Notices>,
    metrics: AssignmentMetrics,
    /// Services of type LoadBalancer, and those with the condition.
    services: BTreeMap<ServiceName, Box<Service>>,
    /// Pools, namespaces and Nodes.
    others: BTreeMap<ObjectRef, Object>,
    /// The nodes with endpoints of each Service, instead of the slices.
    endpoints: EndpointNodes,
    /// `None` while another process assigns addresses.
    ipam: Option<Ipam>,
    /// Services that may have another status to write than before.
    changed: BTreeSet<ServiceName>,
    /// Services whose status is to be written, with the number of the moment since which it is.
    due: BTreeMap<ServiceName, u64>,
    /// The Services that are due, the longest ones first: those of frequent changes do not starve the others.
    queue: BTreeMap<u64, ServiceName>,
    next_number: u64,
    /// Services whose last write failed: they wait, and others don't.
    postponed: BTreeSet<ServiceName>,
    /// Versions that were written and may not have arrived yet.
    ahead: BTreeMap<ServiceName, (u64, Instant)>,
    /// Problems of pools that were posted.
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
}

impl AssignmentState {
    pub fn new(
        settings: IpamSettings,
        ranges: Vec<Range>,
        notices: Arc<dyn Notices>,
        metrics: AssignmentMetrics,
    ) -> Self {
        Self {
            settings,
            ranges,
            notices,
            metrics,
            services: BTreeMap::new(),
            others: BTreeMap::new(),
            endpoints: EndpointNodes::default(),
            ipam: None,
            changed: BTreeSet::new(),
            due: BTreeMap::new(),
            queue: BTreeMap::new(),
            next_number: 0,
            postponed: BTreeSet::new(),
            ahead: BTreeMap::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Begins to assign addresses: first all are read that statuses contain.
    pub fn lead(&mut self) {
        let mut ipam = Ipam::new(self.settings.clone(), Pools::new(&self.ranges));
        self.others.values().for_each(|object| ipam.apply(object));
        ipam.set_endpoint_nodes(self.endpoints.clone());
        for service in self.services.values() {
            ipam.apply(&Object::Service(service.clone()));
        }
        self.ipam = Some(ipam);
        self.changed = self.services.keys().cloned().collect();
        self.assign_addresses();
    }

    /// Another process assigns them.
    pub fn follow(&mut self) {
        self.ipam = None;
        self.due.clear();
        self.queue.clear();
        self.postponed.clear();
        self.metrics.set(None);
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.ipam.is_some()
    }

    /// Takes in an event without acting on it.
    pub fn store_event(&mut self, event: Event) {
        match event {
            Event::Applied(Object::Service(service)) => self.store_service(service),
            Event::Applied(object) => {
                if let Some(ipam) = &mut self.ipam {
                    ipam.apply(&object);
                }
                if let Object::EndpointSlice(slice) = &object {
                    self.endpoints.apply(slice);
                    return;
                }
                self.others.insert(object.reference(), object);
            }
            Event::Deleted(reference) => self.delete_object(&reference),
            Event::Together(events) => events.into_iter().for_each(|event| self.store_event(event)),
            Event::Problem(problem) => {
                self.post(None, NoticeReason::NotServed, problem.to_string())
            }
            Event::Synced(_) => {}
        }
    }

    fn store_service(&mut self, service: Box<Service>) {
        let name = ServiceName::of(&service.metadata);
        if let Some((version, until)) = self.ahead.get(&name) {
            let is_stale = version_of(&service).is_some_and(|known| known < *version);
            if is_stale && Instant::now() < *until {
                return;
            }
            self.ahead.remove(&name);
        }
        if !is_load_balancer(&service) && status::find_condition(&service).is_none() {
            self.delete_object(&reference_of(&name));
            return;
        }
        if let Some(ipam) = &mut self.ipam {
            ipam.apply(&Object::Service(service.clone()));
        }
        self.services.insert(name.clone(), service);
        self.changed.insert(name);
    }

    fn delete_object(&mut self, reference: &ObjectRef) {
        if let Some(ipam) = &mut self.ipam {
            ipam.delete(reference);
        }
        if reference.kind == Kind::Service {
            let name = ServiceName::new(&reference.namespace, &reference.name);
            self.services.remove(&name);
            self.set_due(&name, false);
            self.ahead.remove(&name);
        } else if reference.kind == Kind::EndpointSlice {
            self.endpoints.remove(&ServiceName::new(&reference.namespace, &reference.name));
        } else {
            self.others.remove(reference);
        }
    }

    /// Assigns addresses, and finds what is to be written. The cost depends on what has changed, not on what is due.
    pub(crate) fn assign_addresses(&mut self) {
        let Some(ipam) = &mut self.ipam else {
            self.changed.clear();
            return;
        };
        self.changed.extend(ipam.settle());
        for name in std::mem::take(&mut self.changed) {
            let is_due = self.status_patch(&name, Timestamp::UNIX_EPOCH).is_some();
            let is_postponed = self.postponed.contains(&name);
            self.set_due(&name, is_due && !is_postponed);
        }
        self.metrics.set(self.ipam.as_ref());
        self.report_problems();
    }

    pub(crate) fn due_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.queue.values()
    }

    pub(crate) fn has_ports_of_nodes(&self, name: &ServiceName) -> bool {
        let outcome = self.ipam.as_ref().and_then(|ipam| ipam.outcome(name));
        outcome.is_some_and(|outcome| !outcome.ports.is_empty())
    }

    fn set_due(&mut self, name: &ServiceName, is_due: bool) {
        if !is_due {
            if let Some(number) = self.due.remove(name) {
                self.queue.remove(&number);
            }
        } else if !self.due.contains_key(name) {
            self.due.insert(name.clone(), self.next_number);
            self.queue.insert(self.next_number, name.clone());
            self.next_number += 1;
        }
    }

    /// A write has failed.
    pub(crate) fn postpone(&mut self, name: ServiceName) {
        self.set_due(&name, false);
        self.postponed.insert(name);
    }

    /// Writes that have failed are due again.
    pub fn resume(&mut self) {
        self.changed.append(&mut self.postponed);
        self.assign_addresses();
    }

    /// What is to be written to the status of a Service; `None`: nothing.
    pub(crate) fn status_patch(&self, name: &ServiceName, now: Timestamp) -> Option<Value> {
        #[cfg(test)]
        PATCHES.set(PATCHES.get() + 1);
        let service = self.services.get(name)?;
        match self.ipam.as_ref()?.outcome(name) {
            Some(outcome) => status::build_status_patch(service, outcome, now),
            None if self.is_released(service) => status::build_release_patch(service),
            None => None,
        }
    }

    /// Whether a Service is certainly none that addresses are assigned to by this controller.
    fn is_released(&self, service: &Service) -> bool {
        let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_ref());
        !is_load_balancer(service)
            || class.is_some_and(|class| !self.settings.classes.contains(class))
    }

    /// A status was written; the server returned the Service as it is now.
    pub fn note_written(&mut self, name: &ServiceName, service: Box<Service>) {
        let Some(before) = self.services.get(name) else { return };
        if before.metadata.uid != service.metadata.uid {
            return;
        }
        if version_of(&service) > version_of(before) {
            self.store_ahead(service);
        }
    }

    /// Takes in Services in their most recent state, which watches may not have reported yet.
    pub(crate) fn store_latest(&mut self, services: Vec<Object>) {
        for object in services {
            let Object::Service(service) = object else { continue };
            let known = self.services.get(&ServiceName::of(&service.metadata));
            if known.is_none_or(|known| version_of(&service) > version_of(known)) {
                self.store_ahead(service);
            }
        }
    }

    /// Stores a Service whose version the watch may not have reached. Older ones are ignored for a while.
    fn store_ahead(&mut self, service: Box<Service>) {
        let name = ServiceName::of(&service.metadata);
        let version = version_of(&service);
        self.store_service(service);
        let until = Instant::now() + STALE_VERSION_LIFETIME;
        self.ahead.extend(version.map(|version| (name, (version, until))));
    }

    /// What to report when the status is written: that the outcome is another one than the condition says.
    pub(crate) fn outcome_notice(&self, name: &ServiceName) -> Option<Notice> {
        let service = self.services.get(name)?;
        let outcome = self.ipam.as_ref()?.outcome(name)?;
        if !has_news(service, outcome) {
            return None;
        }
        let about = NoticeObject {
            reference: reference_of(&ServiceName::of(&service.metadata)),
            uid: service.metadata.uid.clone().unwrap_or_default(),
        };
        let AssignmentOutcome { reason, message, outside, .. } = outcome;
        let (reason, message) = match (reason, outside) {
            (Became::Assigned, 0) => (NoticeReason::AddressAssigned, message.clone()),
            (Became::Assigned, _) => {
                (NoticeReason::AddressOutsidePools, format!("{message}. Add it to a pool"))
            }
            _ => (NoticeReason::AddressNotAssigned, format!("{}: {message}", reason.name())),
        };
        Some(Notice { about: Some(about), reason, message })
    }

    fn post(&self, about: Option<NoticeObject>, reason: NoticeReason, message: String) {
        if self.ipam.is_some() {
            self.notices.post(Notice { about, reason, message });
        }
    }

    /// Reports problems of pools, each once.
    fn report_problems(&mut self) {
        let Some(ipam) = &self.ipam else { return };
        let known = ipam.pools().problems();
        if *known == self.problems {
            return;
        }
        for (reference, problems) in known {
            let before = self.problems.get(reference).map(Vec::as_slice).unwrap_or_default();
            for problem in problems.iter().filter(|problem| !before.contains(problem)) {
                let uid = self.others.get(reference).and_then(uid_of).unwrap_or_default();
                let about = NoticeObject { reference: reference.clone(), uid };
                let message = format!("{}: {}", problem.field, problem.message);
                self.post(Some(about), NoticeReason::PoolNotUsed, message);
            }
        }
        self.problems = known.clone();
    }

    /// Pools whose status differs from what is used, with the patch.
    pub(crate) fn pool_statuses(&self) -> BTreeMap<String, Value> {
        let mut statuses: BTreeMap<&str, AddressPoolStatus> = BTreeMap::new();
        for usage in self.ipam.iter().flat_map(Ipam::usage) {
            let PoolName::Object(reference) = usage.pool else { continue };
            if reference.kind != Kind::AddressPool {
                continue;
            }
            let status = statuses.entry(&reference.name).or_default();
            let used = limit_status_number(usage.used.into());
            let free = limit_status_number(usage.free);
            match usage.family {
                AddressFamily::V4 => (status.used_ipv4, status.free_ipv4) = (used, free),
                AddressFamily::V6 => (status.used_ipv6, status.free_ipv6) = (used, free),
            }
        }
        let mut patches = BTreeMap::new();
        for (name, status) in statuses {
            let reference = ObjectRef::new(Kind::AddressPool, None, Some(name));
            if let Some(Object::AddressPool(pool)) = self.others.get(&reference)
                && pool.status != Some(status)
            {
                patches.insert(name.to_owned(), json!({"status": status}));
            }
        }
        patches
    }
}

/// Whether the outcome is another one than the condition says.
fn has_news(service: &Service, outcome: &AssignmentOutcome) -> bool {
    status::find_condition(service).is_none_or(|condition| {
        condition.reason != outcome.reason.name() || condition.message != outcome.message
    })
}

/// Clients that read numbers of JSON as floating-point ones know no greater number exactly.
fn limit_status_number(count: u128) -> i64 {
    const MOST: i64 = (1 << 53) - 1;
    i64::try_from(count).map_or(MOST, |count| count.min(MOST))
}

fn is_load_balancer(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

fn reference_of(name: &ServiceName) -> ObjectRef {
    ObjectRef::new(Kind::Service, Some(&name.namespace), Some(&name.name))
}

fn uid_of(object: &Object) -> Option<String> {
    match object {
        Object::AddressPool(pool) => pool.metadata.uid.clone(),
        Object::IpAddressPool(pool) => pool.metadata.uid.clone(),
        Object::L2Advertisement(advertisement) => advertisement.metadata.uid.clone(),
        _ => None,
    }
}

fn version_of(service: &Service) -> Option<u64> {
    service.metadata.resource_version.as_deref()?.parse().ok()
}
