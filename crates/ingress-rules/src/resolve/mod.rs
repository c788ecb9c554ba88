//! Resolves one Ingress.

mod auth;
mod backends;
mod jwt;
mod oidc;
mod policy;
mod rules;
mod servers;
mod snippets;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::networking::v1::Ingress;
use lb_http::{Action, HostPattern, Route, RouteOwner, RoutePolicy, UpstreamName};
use lb_rules::model::{Problem, ServiceName};

use super::annotations::{self, Draft};
use super::objects::IngressObjects;
use super::resolved::{HostPart, Resolved, Share};

pub use oidc::is_shared_login;

pub fn resolve_ingress(ingress: &Ingress, objects: &IngressObjects) -> Resolved {
    let name = ServiceName::of(&ingress.metadata);
    let annotations = ingress.metadata.annotations.as_ref();
    let (draft, findings) = annotations
        .map(|annotations| annotations::read_annotations(annotations, objects.settings.snippets))
        .unwrap_or_default();
    let mut resolver = Resolver {
        owner: RouteOwner {
            namespace: name.namespace.as_str().into(),
            name: name.name.as_str().into(),
        },
        object: format!("Ingress {name}"),
        name,
        annotations,
        objects,
        closed: draft.closed.clone(),
        draft,
        policy: Arc::default(),
        routes: BTreeMap::new(),
        hosts: BTreeMap::new(),
        upstreams: BTreeMap::new(),
        services: BTreeSet::new(),
        secrets: BTreeSet::new(),
        certificates: BTreeSet::new(),
        expressions: 0,
        problems: Vec::new(),
    };
    for finding in findings {
        if let Some(why) = finding.outcome.problem() {
            resolver.problem(&format!("metadata.annotations[{}]", finding.key), why.to_owned());
        }
    }
    let spec = ingress.spec.clone().unwrap_or_default();
    resolver.policy(&spec);
    let clients = resolver.clients();
    let denied = resolver.read_denied_locations(&spec);
    let default = resolver.rules(&spec);
    resolver.add_oidc_paths();
    for part in resolver.hosts.values_mut() {
        part.denied.clone_from(&denied);
    }
    resolver.tls(&spec);
    resolver.add_hosts();
    if let Some(clients) = clients {
        resolver.give_wildcard_certificates();
        for part in resolver.hosts.values_mut().filter(|part| !part.gives_way) {
            part.clients = Some(clients.clone());
        }
    }
    let age = ingress.metadata.creation_timestamp.as_ref().map(|time| time.0);
    resolver.finish(age, default)
}

/// An Ingress while it is resolved.
struct Resolver<'a> {
    name: ServiceName,
    owner: RouteOwner,
    object: String,
    annotations: Option<&'a BTreeMap<String, String>>,
    objects: &'a IngressObjects,
    draft: Draft,
    /// Why its rules answer 503.
    closed: Option<Arc<str>>,
    policy: Arc<RoutePolicy>,
    /// By Service and port: hosts and paths share routes.
    routes: BTreeMap<(Arc<str>, Arc<str>), Arc<Route>>,
    hosts: BTreeMap<HostPattern, HostPart>,
    /// With the first field that names each.
    upstreams: BTreeMap<UpstreamName, Box<str>>,
    services: BTreeSet<ServiceName>,
    secrets: BTreeSet<ServiceName>,
    certificates: BTreeSet<ServiceName>,
    /// Compiling one takes a millisecond.
    expressions: usize,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn problem(&mut self, field: &str, message: String) {
        self.problems.push(Problem {
            object: self.object.clone(),
            field: field.to_owned(),
            message,
        });
    }

    /// The field of an annotation, by our name, under the key that the Ingress has.
    fn field(&self, name: &str) -> String {
        let none = BTreeMap::new();
        let key = annotations::annotation_key(name, self.annotations.unwrap_or(&none));
        format!("metadata.annotations[{key}]")
    }

    /// A problem with what an annotation names.
    fn annotation_problem(&mut self, name: &str, message: String) {
        self.problem(&self.field(name), message);
    }

    /// Closes the rules: a restriction of access can't be honoured.
    fn close(&mut self, name: &str, why: String) {
        let reason = format!("{name} can't be honoured: {why}");
        self.annotation_problem(name, format!("{why}; the rules answer 503"));
        self.closed.get_or_insert_with(|| reason.into());
    }

    fn unavailable(&self, reason: Arc<str>) -> Arc<Route> {
        let mut policy = self.policy.clone();
        if self.closed.is_some() && policy.snippet.is_some() {
            // Closed rules do not even answer what their snippet returns.
            Arc::make_mut(&mut policy).snippet = None;
        }
        Arc::new(Route {
            owner: self.owner.clone(),
            action: Action::Respond { status: StatusCode::SERVICE_UNAVAILABLE, reason },
            canaries: Vec::new(),
            policy,
        })
    }

    fn finish(mut self, age: super::resolved::Age, default: Option<Arc<Route>>) -> Resolved {
        self.problems.sort();
        self.problems.dedup();
        let draft = &self.draft;
        let canary = draft.canary.enabled.then(|| Share {
            header: draft.canary.header(),
            cookie: draft.canary.cookie.clone(),
            weight: draft.canary.weight,
            weight_total: draft.canary.weight_total.unwrap_or(100),
            balance: match &draft.balance {
                lb_http::policy::Balance::LeastOfTwo => None,
                balance => Some(balance.clone()),
            },
            affinity: draft.affinity_cookie(),
        });
        Resolved {
            age,
            hosts: self.hosts.into_iter().collect(),
            default,
            canary,
            upstreams: self.upstreams.into_iter().collect(),
            services: self.services.into_iter().collect(),
            secrets: self.secrets.into_iter().collect(),
            certificates: self.certificates.into_iter().collect(),
            restrictions: draft.restrictions(),
            problems: self.problems.into(),
        }
    }
}
