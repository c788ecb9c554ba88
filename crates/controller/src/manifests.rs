//! Assigns addresses to Services from manifests, on one node: there is no API that has their status. What was assigned
//! is remembered in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use futures::future::{Either, select};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lb_process::state_file::StateFile;
use lb_rules::ipam::{AssignmentOutcome, AssignmentReason, Ipam, IpamSettings, Pools, Range};
use lb_rules::kinds::service::{CONDITION, NODE_PORTS_CONDITION};
use lb_rules::model::{Kind, Object, ObjectRef, Problem, ServiceName};
use lb_source::{Event, Extent, Source};
use tokio::sync::mpsc;

use super::AssignmentMetrics;
use super::status::build_ingress;

/// In the state directory.
const ASSIGNMENTS_FILE: &str = "addresses.json";
/// A hundred thousand Services.
const MAX_ASSIGNMENTS_BYTES: u64 = 16 << 20;

/// A source whose Services of type LoadBalancer get a status.
pub struct AssigningSource<S> {
    source: S,
    assignment: AssigningState,
}

struct AssigningState {
    ipam: Ipam,
    /// Services of type LoadBalancer, as they are in the manifests.
    services: BTreeMap<ServiceName, Box<Service>>,
    /// The Services among them that are to be passed on.
    pending: BTreeSet<ServiceName>,
    memory: AssignmentsFile,
    metrics: AssignmentMetrics,
    /// Outcomes that were reported as problems.
    reported: BTreeMap<ServiceName, String>,
}

impl<S: Source> AssigningSource<S> {
    pub fn new(
        source: S,
        settings: IpamSettings,
        ranges: &[Range],
        directory: &Path,
        metrics: AssignmentMetrics,
    ) -> Self {
        // Only this process assigns addresses to these Services.
        let settings = IpamSettings { is_alone: true, ..settings };
        let assignment = AssigningState {
            ipam: Ipam::new(settings, Pools::new(ranges)),
            services: BTreeMap::new(),
            pending: BTreeSet::new(),
            memory: AssignmentsFile::open(directory),
            metrics,
            reported: BTreeMap::new(),
        };
        Self { source, assignment }
    }
}

impl<S: Source + Send> Source for AssigningSource<S> {
    async fn run(self, events: mpsc::UnboundedSender<Event>) -> Result<()> {
        let Self { source, mut assignment } = self;
        let (sender, mut received) = mpsc::unbounded_channel();
        let source = source.run(sender);
        let assign = async {
            // Until all Services are known, none gets an address.
            let mut is_synced = false;
            while let Some(event) = received.recv().await {
                let ends_list = matches!(event, Event::Synced(_));
                let mut passed = Vec::new();
                assignment.take_in(event, &mut passed);
                is_synced |= ends_list;
                if is_synced {
                    passed.extend(assignment.settle());
                }
                if !passed.is_empty() && events.send(Event::Together(passed)).is_err()
                    || ends_list && events.send(Event::Synced(Extent::All)).is_err()
                {
                    return;
                }
            }
        };
        match select(Box::pin(source), Box::pin(assign)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), _)) => Ok(()),
        }
    }
}

impl AssigningState {
    /// Takes in an event. What needs no address is passed on.
    fn take_in(&mut self, event: Event, passed: &mut Vec<Event>) {
        match event {
            Event::Together(events) => {
                events.into_iter().for_each(|event| self.take_in(event, passed));
            }
            Event::Applied(Object::Service(service)) => {
                let name = ServiceName::of(&service.metadata);
                let spec = service.spec.as_ref();
                let is_balanced =
                    spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
                let mut remembered = service.clone();
                if let Some(addresses) = self.memory.addresses.get(&name.to_string())
                    && !has_load_balancer_addresses(&service)
                {
                    set_status(&mut remembered, list_points(addresses), None);
                }
                self.ipam.apply(&Object::Service(remembered));
                if is_balanced {
                    self.pending.insert(name.clone());
                    self.services.insert(name, service);
                } else {
                    self.services.remove(&name);
                    passed.push(Event::Applied(Object::Service(service)));
                }
            }
            Event::Applied(object) => {
                self.ipam.apply(&object);
                passed.push(Event::Applied(object));
            }
            Event::Deleted(reference) => {
                self.ipam.delete(&reference);
                if reference.kind == Kind::Service {
                    self.services.remove(&ServiceName::new(&reference.namespace, &reference.name));
                }
                passed.push(Event::Deleted(reference));
            }
            Event::Problem(problem) => passed.push(Event::Problem(problem)),
            Event::Synced(_) => {}
        }
    }

    /// Assigns addresses. Returns the Services that have others than before, or were changed otherwise.
    fn settle(&mut self) -> Vec<Event> {
        let changed = self.ipam.settle();
        let mut passed = std::mem::take(&mut self.pending);
        passed.extend(changed.iter().cloned());
        let mut events = Vec::new();
        for name in &passed {
            let Some(service) = self.services.get(name) else {
                self.reported.remove(name);
                continue;
            };
            let mut service = service.clone();
            if let Some(outcome) = self.ipam.outcome(name) {
                set_status(&mut service, build_ingress(outcome), Some(outcome));
                events.extend(report_outcome(&mut self.reported, name, outcome, &self.ipam));
            }
            events.push(Event::Applied(Object::Service(service)));
        }
        if !changed.is_empty() {
            self.remember();
        }
        self.metrics.set(Some(&self.ipam));
        events
    }

    fn remember(&mut self) {
        let assigned = self.services.keys().filter_map(|name| {
            let outcome = self.ipam.outcome(name)?;
            let is_own = !outcome.addresses.is_empty() && outcome.ports.is_empty();
            is_own.then(|| (name.to_string(), outcome.addresses.clone()))
        });
        let assigned: BTreeMap<String, Vec<IpAddr>> = assigned.collect();
        self.memory.set(assigned);
    }
}

/// A Service without the requested address; each reason once.
fn report_outcome(
    reported: &mut BTreeMap<ServiceName, String>,
    name: &ServiceName,
    outcome: &AssignmentOutcome,
    ipam: &Ipam,
) -> Option<Event> {
    // Without pools no Service expects an address.
    if outcome.reason == AssignmentReason::Assigned || ipam.pools().is_empty() {
        reported.remove(name);
        return None;
    }
    let message = format!("{}: {}", outcome.reason.name(), outcome.message);
    if reported.insert(name.clone(), message.clone()).as_ref() == Some(&message) {
        return None;
    }
    let reference = ObjectRef::new(Kind::Service, Some(&name.namespace), Some(&name.name));
    let field = "status.loadBalancer".to_owned();
    Some(Event::Problem(Problem { object: reference.to_string(), field, message }))
}

fn has_load_balancer_addresses(service: &Service) -> bool {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer
        .is_some_and(|balancer| balancer.ingress.as_ref().is_some_and(|points| !points.is_empty()))
}

/// Entries of addresses that were assigned before.
fn list_points(addresses: &[IpAddr]) -> Vec<LoadBalancerIngress> {
    let point = |address: &IpAddr| LoadBalancerIngress {
        ip: Some(address.to_string()),
        ip_mode: Some("VIP".to_owned()),
        ..LoadBalancerIngress::default()
    };
    addresses.iter().map(point).collect()
}

fn set_status(
    service: &mut Service,
    points: Vec<LoadBalancerIngress>,
    outcome: Option<&AssignmentOutcome>,
) {
    let ingress = Some(points);
    let condition = outcome.map(|outcome| Condition {
        type_: CONDITION.to_owned(),
        status: if outcome.reason == AssignmentReason::Assigned { "True" } else { "False" }
            .to_owned(),
        reason: outcome.reason.name().to_owned(),
        message: String::new(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    });
    let grant = outcome.and_then(|outcome| outcome.grant.as_ref()).map(|grant| Condition {
        type_: NODE_PORTS_CONDITION.to_owned(),
        status: "True".to_owned(),
        reason: "Lent".to_owned(),
        message: grant.to_string(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    });
    let conditions: Vec<Condition> = condition.into_iter().chain(grant).collect();
    service.status = Some(ServiceStatus {
        load_balancer: Some(LoadBalancerStatus { ingress }),
        conditions: (!conditions.is_empty()).then_some(conditions),
    });
}

/// What was assigned, on disk.
struct AssignmentsFile {
    file: StateFile,
    addresses: BTreeMap<String, Vec<IpAddr>>,
    is_failing: bool,
}

impl AssignmentsFile {
    /// A file that can't be read is reported, and Services are assigned addresses again.
    fn open(directory: &Path) -> Self {
        let file = StateFile::new(directory, ASSIGNMENTS_FILE, MAX_ASSIGNMENTS_BYTES);
        let read = file.read().and_then(|text| match text {
            Some(text) => Ok(serde_json::from_str(&text)?),
            None => Ok(BTreeMap::new()),
        });
        let addresses = read.unwrap_or_else(|error| {
            let (path, error) = (file.path(), format!("{error:#}"));
            tracing::warn!(path = %path.display(), error, "assigned addresses not readable; assigning anew");
            BTreeMap::new()
        });
        Self { file, addresses, is_failing: false }
    }

    fn set(&mut self, addresses: BTreeMap<String, Vec<IpAddr>>) {
        if addresses == self.addresses && !self.is_failing {
            return;
        }
        self.addresses = addresses;
        let text = serde_json::to_string_pretty(&self.addresses).map_err(anyhow::Error::from);
        let written = text.and_then(|text| self.file.replace(&text));
        if let Err(error) = &written {
            let (path, error) = (self.file.path(), format!("{error:#}"));
            tracing::warn!(
                path = %path.display(),
                error,
                fix = "make --state-directory writable for the agent",
                "assigned addresses not remembered: a restart may assign others"
            );
        }
        self.is_failing = written.is_err();
    }
}
