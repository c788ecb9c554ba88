//! What one Ingress means by itself, before it is combined with others.

use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use lb_http::policy::{AffinityCookie, Balance, RateLimits, Satisfy};
use lb_http::route::CanaryHeader;
use lb_http::snippet::SourceRule;
use lb_http::{HostPattern, PathPattern, Route, UpstreamName};
use lb_proxy::{Certificate, ClientCertificates, Passthrough};
use lb_rules::model::{Problem, ServiceName};

use super::annotations::{JwtDraft, OidcDraft};

#[derive(Debug, Default)]
pub struct Resolved {
    pub age: Age,
    /// By host, sorted.
    pub hosts: Box<[(HostPattern, HostPart)]>,
    /// Of an Ingress without rules: gets what no other rule of its namespace's hosts matches.
    pub default: Option<Arc<Route>>,
    /// Its part of other Ingresses' requests.
    pub canary: Option<Share>,
    /// The upstreams that its routes use, and the fields that name them.
    pub upstreams: Box<[(UpstreamName, Box<str>)]>,
    pub services: Box<[ServiceName]>,
    /// That annotations name, most of which restrict access.
    pub secrets: Box<[ServiceName]>,
    /// That `spec.tls` names.
    pub certificates: Box<[ServiceName]>,
    /// What requests must satisfy. A canary must not want anything else than its main Ingress.
    pub restrictions: Restrictions,
    pub problems: Box<[Problem]>,
}

/// When an Ingress was created; the oldest has precedence. `None`, as for Ingresses from files, counts as the oldest.
pub type Age = Option<Timestamp>;

/// What an Ingress says about one host.
#[derive(Clone, Debug, Default)]
pub struct HostPart {
    pub paths: Vec<(PathPattern, Arc<Route>)>,
    /// Have precedence over the paths of all Ingresses.
    pub denied: Vec<DeniedLocation>,
    pub default: Option<Arc<Route>>,
    pub tls: Option<ResolvedTls>,
    /// `spec.tls` names the host, whether its Secret can be used or not.
    pub wants_tls: bool,
    pub clients: Option<Clients>,
    /// Only a redirect to another host: gives way to every Ingress that has this host.
    pub gives_way: bool,
}

/// A location that a snippet denies to all clients.
#[derive(Clone, Debug)]
pub struct DeniedLocation {
    pub path: PathPattern,
    /// Over all expressions, of whatever length.
    pub is_preferred: bool,
    pub route: Arc<Route>,
}

#[derive(Clone, Debug)]
pub enum ResolvedTls {
    /// With the certificate of a Secret; `None`: the default one.
    Terminate(Option<ServiceName>, Arc<Certificate>),
    Passthrough(Arc<Passthrough>),
}

/// What annotations demand of clients, by what they name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restrictions {
    pub allowed_sources: Vec<IpNet>,
    pub denied_sources: Vec<IpNet>,
    /// Secret with users.
    pub users: Option<Arc<str>>,
    pub auth_url: Option<Arc<str>>,
    pub jwt: JwtDraft,
    pub oidc: OidcDraft,
    /// Secret with the authorities of clients' certificates.
    pub clients: Option<Arc<str>>,
    pub limits: RateLimits,
    /// Of snippets.
    pub source_rules: Vec<SourceRule>,
    pub satisfy: Satisfy,
}

/// Which certificates clients need.
#[derive(Clone, Debug)]
pub struct Clients {
    pub secret: ServiceName,
    pub certificates: ClientCertificates,
    /// That asks for them.
    pub field: Arc<str>,
}

impl PartialEq for Clients {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.certificates, &other.certificates);
        self.secret == other.secret
            && own.optional == others.optional
            && own.pass_to_endpoint == others.pass_to_endpoint
    }
}

/// The requests that a canary gets, and what it does not take from the main Ingress.
#[derive(Clone, Debug)]
pub struct Share {
    pub header: Option<CanaryHeader>,
    pub cookie: Option<Arc<str>>,
    pub weight: u32,
    pub weight_total: u32,
    pub balance: Option<Balance>,
    pub affinity: Option<AffinityCookie>,
}

impl Resolved {
    pub fn part(&self, host: &HostPattern) -> Option<&HostPart> {
        let index = self.hosts.binary_search_by(|(known, _)| known.cmp(host)).ok()?;
        Some(&self.hosts[index].1)
    }
}
