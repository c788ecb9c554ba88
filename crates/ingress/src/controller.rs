//! Takes in the changes of objects, and publishes what the proxy serves.
//!
//! Invariants:
//! - Events that are queued at the same time become one change. A single one is not delayed.
//! - A snapshot is published whole: no request is served by a half of a change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::networking::v1::{Ingress, IngressLoadBalancerIngress};
use lb_http::HostPattern;
use lb_ingress_rules::snapshot;
use lb_ingress_rules::{
    Delta, IngressRuleSettings, MOST_NAMED, Model, NamedSecrets, UpstreamTarget,
};
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_proxy::{Config, HostTls};
use lb_rules::model::{Kind, Object, ObjectRef, Problem, ServiceName};
use lb_source::Event;
use tokio::sync::{mpsc, watch};

use super::certificates;
use super::metrics::IngressMetrics;
use super::names::{NameResolver, ResolvedUpstream};
use super::status::{StatusChange, StatusHandle};

/// The annotations of each Ingress, for explanations.
#[derive(Clone, Default)]
pub(crate) struct IngressAnnotations(Arc<Mutex<BTreeMap<ServiceName, AnnotationMap>>>);

/// The annotations of one Ingress.
type AnnotationMap = Arc<BTreeMap<String, String>>;

impl IngressAnnotations {
    pub fn of(&self, namespace: &str, name: &str) -> AnnotationMap {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&ServiceName::new(namespace, name)).cloned().unwrap_or_default()
    }

    fn set(&self, ingress: &ServiceName, annotations: Option<BTreeMap<String, String>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match annotations {
            Some(annotations) => all.insert(ingress.clone(), Arc::new(annotations)),
            None => all.remove(ingress),
        };
    }
}

/// Where the controller reports to.
pub(crate) struct ControllerOutputs {
    pub notices: Arc<dyn Notices>,
    pub metrics: Arc<IngressMetrics>,
    pub status: Option<StatusHandle>,
    /// The Service whose addresses the status has.
    pub published: Option<ServiceName>,
    pub annotations: IngressAnnotations,
}

pub(crate) struct IngressController {
    model: Model,
    snapshot: Config,
    config: watch::Sender<Arc<Config>>,
    names: NameResolver,
    outlets: ControllerOutputs,
    ingresses: BTreeMap<ServiceName, KnownIngress>,
    served: BTreeSet<ServiceName>,
    /// Ingresses whose status may have changed since the last settlement.
    touched: BTreeSet<ServiceName>,
    uids: HashMap<ObjectRef, Box<str>>,
    problems: BTreeMap<ObjectRef, BTreeSet<Problem>>,
    /// Secrets that the source watches by name.
    secrets: watch::Sender<BTreeSet<ObjectRef>>,
    /// Secrets beyond the limit, which are not watched.
    unwatched_secrets: BTreeSet<ObjectRef>,
}

/// What is known of an Ingress besides its meaning.
struct KnownIngress {
    /// Of everything but the status, so that writing that changes nothing.
    hash: u64,
    status: Vec<IngressLoadBalancerIngress>,
}

impl IngressController {
    pub fn new(
        settings: IngressRuleSettings,
        outlets: ControllerOutputs,
        resolved: mpsc::UnboundedSender<ResolvedUpstream>,
        secrets: watch::Sender<BTreeSet<ObjectRef>>,
    ) -> Self {
        Self {
            snapshot: snapshot::new_config(&settings),
            model: Model::new(settings),
            config: watch::Sender::new(Arc::default()),
            names: NameResolver::start(resolved),
            outlets,
            ingresses: BTreeMap::new(),
            served: BTreeSet::new(),
            touched: BTreeSet::new(),
            uids: HashMap::new(),
            problems: BTreeMap::new(),
            secrets,
            unwatched_secrets: BTreeSet::new(),
        }
    }

    pub fn config(&self) -> watch::Receiver<Arc<Config>> {
        self.config.subscribe()
    }

    /// Handles an event, and all that are queued behind it, as one change.
    pub fn take_in(&mut self, first: Event, events: &mut mpsc::UnboundedReceiver<Event>) {
        self.store_event(first);
        while let Ok(event) = events.try_recv() {
            self.store_event(event);
        }
        self.publish_changes();
    }

    /// Takes in an event without acting on it.
    pub fn store_event(&mut self, event: Event) {
        match event {
            Event::Applied(object) => self.apply_object(object),
            Event::Deleted(reference) => self.delete_object(&reference),
            Event::Together(events) => events.into_iter().for_each(|event| self.store_event(event)),
            Event::Problem(problem) => self.post(&problem),
            Event::Synced(_) => {}
        }
    }

    fn apply_object(&mut self, object: Object) {
        let reference = object.reference();
        let uid = match &object {
            Object::Ingress(ingress) => {
                if !self.note_ingress(&reference, ingress) {
                    return;
                }
                &ingress.metadata.uid
            }
            Object::Service(service) => {
                self.note_published_service(&reference, Some(service));
                &service.metadata.uid
            }
            Object::IngressClass(class) => &class.metadata.uid,
            Object::Secret(secret) => &secret.metadata.uid,
            _ => &None,
        };
        if let Some(uid) = uid {
            self.uids.insert(reference, uid.as_str().into());
        }
        self.model.apply(object);
    }

    /// Notes what the model does not need. Returns whether anything but the status has changed.
    fn note_ingress(&mut self, reference: &ObjectRef, ingress: &Ingress) -> bool {
        let name = name_of(reference);
        let status = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let status = status.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        let metadata = &ingress.metadata;
        (&metadata.uid, &metadata.annotations, &metadata.labels).hash(&mut hasher);
        serde_json::to_string(&ingress.spec).unwrap_or_default().hash(&mut hasher);
        let hash = hasher.finish();
        self.touched.insert(name.clone());
        let annotations = metadata.annotations.clone().unwrap_or_default();
        let before = self.ingresses.insert(name.clone(), KnownIngress { hash, status });
        let is_changed = before.is_none_or(|before| before.hash != hash);
        if is_changed {
            self.outlets.annotations.set(&name, Some(annotations));
        }
        is_changed
    }

    fn note_published_service(
        &self,
        reference: &ObjectRef,
        service: Option<&k8s_openapi::api::core::v1::Service>,
    ) {
        if let Some(status) = &self.outlets.status
            && self.outlets.published.as_ref() == Some(&name_of(reference))
        {
            status.send(StatusChange::Service(service.cloned().map(Box::new)));
        }
    }

    fn delete_object(&mut self, reference: &ObjectRef) {
        match reference.kind {
            Kind::Ingress => {
                let name = name_of(reference);
                self.ingresses.remove(&name);
                self.outlets.annotations.set(&name, None);
            }
            Kind::Service => self.note_published_service(reference, None),
            _ => {}
        }
        self.uids.remove(reference);
        // Problems of an object that is gone are not fixed.
        self.problems.remove(reference);
        self.model.delete(reference);
    }

    /// Publishes what all changes since the last time mean.
    pub(crate) fn publish_changes(&mut self) {
        let delta = self.model.settle();
        // Without a receiver, the source has all Secrets.
        if delta.other_secrets && !self.secrets.is_closed() {
            self.name_secrets();
        }
        let is_changed = self.change_snapshot(&delta);
        if is_changed {
            self.publish_snapshot();
        }
        self.follow_status(&delta);
        let problems = delta.problems.into_iter();
        problems.for_each(|(reference, problems)| self.report(reference, problems));
        self.outlets.metrics.set_ingresses(self.served.len(), self.problems.len());
    }

    /// Requests that the Secrets by name are reported as listed, even if there are none.
    pub(crate) fn request_secrets(&self) {
        self.secrets.send_replace(self.model.secrets().watched);
    }

    fn name_secrets(&mut self) {
        let NamedSecrets { watched, left_out } = self.model.secrets();
        for reference in left_out.difference(&self.unwatched_secrets) {
            let message = format!(
                "is not watched: Ingresses refer to {MOST_NAMED} other Secrets that do not exist or are not of type \
                 kubernetes.io/tls"
            );
            let (object, field) = (reference.to_string(), String::new());
            self.post(&Problem { object, field, message });
        }
        self.outlets.metrics.set_unwatched_secrets(left_out.len());
        self.unwatched_secrets = left_out;
        self.secrets
            .send_if_modified(|secrets| std::mem::replace(secrets, watched.clone()) != watched);
    }

    /// Addresses of upstreams that are names in DNS.
    pub(crate) fn take_in_resolved(&mut self, resolved: ResolvedUpstream) {
        if self.names.is_current(&resolved) {
            self.snapshot.upstreams.insert(resolved.upstream, resolved.addresses);
            self.publish_snapshot();
        }
    }

    fn change_snapshot(&mut self, delta: &Delta) -> bool {
        snapshot::apply_changes(&mut self.snapshot, delta);
        for (upstream, backends) in &delta.upstreams {
            let target = match backends {
                Some(UpstreamTarget::Name { host, port }) => Some((Arc::clone(host), *port)),
                _ => None,
            };
            self.names.set(upstream, target);
        }
        !(delta.hosts.is_empty() && delta.upstreams.is_empty() && delta.tls.is_empty())
    }

    fn publish_snapshot(&self) {
        let config = Arc::new(self.snapshot.clone());
        self.outlets.metrics.set_config(&config);
        self.config.send_replace(config);
    }

    fn follow_status(&mut self, delta: &Delta) {
        let touched = std::mem::take(&mut self.touched);
        for (ingress, is_ours) in &delta.ingresses {
            if *is_ours {
                self.served.insert(ingress.clone());
            } else if self.served.remove(ingress)
                && let Some(status) = &self.outlets.status
            {
                let exists = self.ingresses.contains_key(ingress);
                status.send(match exists {
                    true => StatusChange::Left(ingress.clone()),
                    false => StatusChange::Deleted(ingress.clone()),
                });
            }
        }
        let Some(status) = &self.outlets.status else { return };
        let served =
            delta.ingresses.iter().filter(|(_, is_served)| **is_served).map(|(name, _)| name);
        for ingress in touched.iter().chain(served) {
            if self.served.contains(ingress)
                && let Some(known) = self.ingresses.get(ingress)
            {
                let current = known.status.clone();
                status.send(StatusChange::Served { ingress: ingress.clone(), current });
            }
        }
    }

    /// Posts the problems of an object that are new, or that all are fixed.
    fn report(&mut self, reference: ObjectRef, problems: Vec<Problem>) {
        let now: BTreeSet<Problem> = problems.into_iter().collect();
        let before = self.problems.remove(&reference).unwrap_or_default();
        for problem in now.difference(&before) {
            self.post(problem);
        }
        if !now.is_empty() {
            self.problems.insert(reference, now);
        } else if !before.is_empty() && self.uids.contains_key(&reference) {
            let about = Some(self.about(reference));
            let message = "the problem is fixed, and it is served".to_owned();
            self.outlets.notices.post(Notice { about, reason: NoticeReason::Served, message });
        }
    }

    fn post(&self, problem: &Problem) {
        let reference = ObjectRef::parse(&problem.object);
        let Problem { field, message, .. } = problem;
        let reason = choose_reason(reference.as_ref(), field);
        let message = match (field.is_empty(), reference.is_some()) {
            (true, true) => message.clone(),
            (false, true) => format!("{field}: {message}"),
            (_, false) => problem.to_string(),
        };
        let about = reference.map(|reference| self.about(reference));
        self.outlets.notices.post(Notice { about, reason, message });
    }

    fn about(&self, reference: ObjectRef) -> NoticeObject {
        let uid = self.uids.get(&reference).map(|uid| uid.to_string()).unwrap_or_default();
        NoticeObject { reference, uid }
    }

    /// Reports certificates that expire soon, as Events on the Ingresses of their hosts.
    pub(crate) fn check_certificates(&mut self, now: i64) {
        for (host, tls) in &self.snapshot.tls {
            let HostTls::Terminate { certificate, .. } = &**tls else { continue };
            let Some(message) = certificates::warn_of_expiry(host, certificate.not_after, now)
            else {
                continue;
            };
            let about = self.owner(host).map(|reference| self.about(reference));
            let reason = NoticeReason::CertificateExpires;
            self.outlets.notices.post(Notice { about, reason, message });
        }
    }

    /// An Ingress with rules for a host.
    fn owner(&self, host: &HostPattern) -> Option<ObjectRef> {
        let host = match host {
            HostPattern::Exact(name) => Some(name.to_string()),
            HostPattern::Wildcard(suffix) => Some(format!("any.{suffix}")),
            HostPattern::Any => None,
        };
        let found = self.snapshot.table.find(host.as_deref(), "/")?;
        let owner = &found.route.owner;
        Some(ObjectRef::new(Kind::Ingress, Some(&owner.namespace), Some(&owner.name)))
    }
}

fn choose_reason(reference: Option<&ObjectRef>, field: &str) -> NoticeReason {
    let kind = reference.map(|reference| reference.kind);
    if field.starts_with("metadata.annotations") {
        NoticeReason::AnnotationNotHonored
    } else if kind == Some(Kind::Secret) || field.starts_with("spec.tls") {
        NoticeReason::CertificateNotUsed
    } else {
        NoticeReason::NotServed
    }
}

fn name_of(reference: &ObjectRef) -> ServiceName {
    ServiceName::new(&reference.namespace, &reference.name)
}

#[cfg(test)]
mod tests;
