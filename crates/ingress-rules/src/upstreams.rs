//! The upstreams that routes use, and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_http::{Upstream, UpstreamName};
use lb_rules::model::{ObjectRef, Problem, ServiceName, Slice, Weights};

use super::objects::IngressObjects;
use super::{UpstreamTarget, services};

#[derive(Debug, Default)]
pub struct Upstreams {
    upstreams: BTreeMap<UpstreamName, UpstreamState>,
    by_service: BTreeMap<ServiceName, BTreeSet<UpstreamName>>,
}

#[derive(Debug, Default)]
struct UpstreamState {
    /// The Ingresses that use it.
    users: BTreeSet<ServiceName>,
    /// As they were reported last.
    backends: Option<UpstreamTarget>,
    /// Of slices.
    problems: Vec<Problem>,
}

/// What a change of an upstream changes.
#[derive(Debug, Default)]
pub struct UpstreamChange {
    /// `Some(None)`: it is gone.
    pub backends: Option<Option<UpstreamTarget>>,
    /// Ingresses whose problems may change.
    pub troubled: BTreeSet<ServiceName>,
    /// Slices whose problems may change.
    pub slices: BTreeSet<ObjectRef>,
}

impl Upstreams {
    /// Whether it is new.
    pub(crate) fn add_user(&mut self, name: &UpstreamName, ingress: &ServiceName) -> bool {
        let is_new = !self.upstreams.contains_key(name);
        if is_new {
            self.by_service.entry(service_of(name)).or_default().insert(name.clone());
        }
        self.upstreams.entry(name.clone()).or_default().users.insert(ingress.clone());
        is_new
    }

    pub(crate) fn remove_user(&mut self, name: &UpstreamName, ingress: &ServiceName) {
        if let Some(state) = self.upstreams.get_mut(name) {
            state.users.remove(ingress);
        }
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.by_service.keys()
    }

    pub fn of_service(&self, service: &ServiceName) -> impl Iterator<Item = &UpstreamName> {
        self.by_service.get(service).into_iter().flatten()
    }

    /// Computes the endpoints again; removes an upstream without users.
    pub fn settle(&mut self, name: &UpstreamName, objects: &IngressObjects) -> UpstreamChange {
        let Some(state) = self.upstreams.get_mut(name) else { return UpstreamChange::default() };
        let mut change =
            UpstreamChange { slices: slices_of(&state.problems), ..UpstreamChange::default() };
        if state.users.is_empty() {
            change.backends = state.backends.is_some().then_some(None);
            self.upstreams.remove(name);
            let service = service_of(name);
            if let Some(upstreams) = self.by_service.get_mut(&service) {
                upstreams.remove(name);
                if upstreams.is_empty() {
                    self.by_service.remove(&service);
                }
            }
            return change;
        }
        let (backends, problems) = compute(name, objects);
        if is_empty(&backends) != state.backends.as_ref().is_some_and(is_empty) {
            change.troubled = state.users.clone();
        }
        change.slices.extend(slices_of(&problems));
        state.problems = problems;
        if state.backends.as_ref() != Some(&backends) {
            state.backends = Some(backends.clone());
            change.backends = Some(Some(backends));
        }
        change
    }

    /// Why requests can't be forwarded at the moment.
    pub fn trouble(&self, name: &UpstreamName) -> Option<String> {
        let backends = self.upstreams.get(name)?.backends.as_ref()?;
        is_empty(backends).then(|| {
            let UpstreamName { namespace, service, port, .. } = name;
            format!("port {port} of Service {namespace}/{service} has no ready endpoints; answered with 503")
        })
    }

    pub(crate) fn problems_of_slice(&self, slice: &ObjectRef) -> Vec<Problem> {
        let object = slice.to_string();
        // A slice has problems rarely.
        let all = self.upstreams.values().flat_map(|state| &state.problems);
        all.filter(|problem| problem.object == object).cloned().collect()
    }
}

fn compute(name: &UpstreamName, objects: &IngressObjects) -> (UpstreamTarget, Vec<Problem>) {
    let service = service_of(name);
    let mut problems = Vec::new();
    let nothing = || UpstreamTarget::Endpoints(Arc::new(Upstream::default()));
    let backends = match objects.service(&service) {
        Some(object) => match services::find_port(object, &name.port) {
            Ok(port) => {
                let slices: Vec<&Slice> =
                    objects.slices.of(&service).unwrap_or_default().iter().collect();
                let weights = Weights::read(object, &mut problems);
                port.backends(&service, &slices, &weights, &objects.node, &mut problems)
            }
            Err(_) => nothing(),
        },
        // Names of Services have no dots: this is the host of an authentication server.
        None if name.service.contains('.') => UpstreamTarget::Name {
            host: name.service.clone(),
            port: name.port.parse().unwrap_or_default(),
        },
        None => nothing(),
    };
    (backends, problems)
}

fn service_of(name: &UpstreamName) -> ServiceName {
    ServiceName::new(&name.namespace, &name.service)
}

fn is_empty(backends: &UpstreamTarget) -> bool {
    match backends {
        UpstreamTarget::Endpoints(upstream) => upstream.endpoints.is_empty(),
        UpstreamTarget::Name { .. } => false,
    }
}

fn slices_of(problems: &[Problem]) -> BTreeSet<ObjectRef> {
    problems.iter().filter_map(|problem| ObjectRef::parse(&problem.object)).collect()
}
