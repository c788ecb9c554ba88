//! Combines what all Ingresses say about a host. The oldest has precedence.
//!
//! Invariants:
//! - A host belongs to the namespace of its oldest Ingress. Unless the settings allow sharing, no other namespace has
//!   rules or a certificate for it.
//! - A wildcard host decides nothing about hosts below it that belong to another namespace.
//! - What a snippet denies, it denies for all Ingresses of the host, all of which are the namespace's; or its rules close.
//! - Canaries belong to the main Ingress's namespace, even if hosts are shared: they get its requests.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use http::StatusCode;
use lb_http::path::Slashes;
use lb_http::table::{HostRules, MOST_EXPRESSION_OCTETS, MOST_EXPRESSIONS, WhyShadowed};
use lb_http::{Action, Canary, HostPattern, PathPattern, Route, RouteOwner, RoutePolicy};
use lb_proxy::HostTls;
use lb_rules::model::{Problem, ServiceName};

use super::annotations::NGINX;
use super::resolve::is_shared_login;
use super::resolved::{Age, Clients, HostPart, Resolved, ResolvedTls, Restrictions, Share};

/// Canaries of one path: each request is compared with all of them.
const MOST_CANARIES: usize = 16;

/// An Ingress that has a host; the least one is the oldest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostClaim {
    pub age: Age,
    pub ingress: ServiceName,
}

/// The Ingresses that have one host, sorted. Most hosts have one.
#[derive(Debug, Default)]
pub struct Claims {
    pub main: Vec<HostClaim>,
    pub canaries: Vec<HostClaim>,
    /// Those that only redirect from it.
    pub redirects: Vec<HostClaim>,
}

impl Claims {
    pub fn list(&mut self, part: &HostPart, is_canary: bool) -> &mut Vec<HostClaim> {
        match () {
            () if is_canary => &mut self.canaries,
            () if part.gives_way => &mut self.redirects,
            () => &mut self.main,
        }
    }

    /// The Ingress that decides to which namespace the host belongs.
    pub fn oldest(&self) -> Option<&HostClaim> {
        self.main.first().or(self.redirects.first())
    }

    pub fn is_empty(&self) -> bool {
        self.main.is_empty() && self.canaries.is_empty() && self.redirects.is_empty()
    }
}

pub fn insert_claim(claims: &mut Vec<HostClaim>, claim: HostClaim) {
    if let Err(index) = claims.binary_search(&claim) {
        claims.reserve_exact(1);
        claims.insert(index, claim);
    }
}

pub fn remove_claim(claims: &mut Vec<HostClaim>, claim: &HostClaim) {
    if let Ok(index) = claims.binary_search(claim) {
        claims.remove(index);
    }
}

/// A host, combined.
#[derive(Debug, Default)]
pub(crate) struct Combined {
    /// In the order of precedence.
    pub rules: Vec<(PathPattern, Arc<Route>)>,
    pub tls: Option<HostTls>,
    pub problems: Vec<(ServiceName, Problem)>,
}

pub(crate) struct Combiner<'a> {
    pub host: &'a HostPattern,
    pub resolved: &'a BTreeMap<ServiceName, Resolved>,
    pub share_hosts: bool,
    pub slashes: Slashes,
    /// The wildcard host above an exact one.
    pub above: Option<Above<'a>>,
    /// What gets the requests that no rule of the owner's namespace matches.
    pub default: Option<Arc<Route>>,
}

/// A wildcard host with TLS, as the hosts below it see it.
pub struct Above<'a> {
    pub pattern: HostPattern,
    /// Namespace.
    pub owner: &'a str,
    pub tls: &'a HostTls,
}

impl Combiner<'_> {
    pub fn combine(&self, claims: &Claims) -> Combined {
        let mut combined = Combined::default();
        let Some(oldest) = claims.oldest() else {
            for claim in &claims.canaries {
                combined.problem(claim, "spec.rules", self.no_main());
            }
            return combined;
        };
        let candidates = if claims.main.is_empty() { &claims.redirects[..1] } else { &claims.main };
        let mut accepted: Vec<(&HostClaim, &HostPart)> = Vec::with_capacity(candidates.len());
        for claim in candidates {
            let Some(part) = self.part(claim) else { continue };
            if self.share_hosts || claim.ingress.namespace == oldest.ingress.namespace {
                accepted.push((claim, part));
            } else {
                combined.problem(claim, "spec.rules", self.refusal(oldest));
            }
        }
        let clients = self.tls(&accepted, &mut combined);
        if combined.tls.is_none() {
            combined.tls = self.without_certificate(&accepted, clients.is_some(), &mut combined);
        }
        self.rules(&accepted, clients, &mut combined);
        if !claims.canaries.is_empty() {
            self.canaries(claims, &mut combined);
        }
        self.report_shadowed(&mut combined);
        combined
    }

    fn part(&self, claim: &HostClaim) -> Option<&HostPart> {
        self.resolved.get(&claim.ingress)?.part(self.host)
    }

    fn refusal(&self, oldest: &HostClaim) -> String {
        let HostClaim { ingress, .. } = oldest;
        match self.host {
            HostPattern::Any => format!(
                "rules without a host belong to namespace {}, whose Ingress {ingress} came first; a defaultBackend \
                 still serves the hosts of its own namespace",
                ingress.namespace
            ),
            host => format!(
                "host {host} belongs to namespace {}, whose Ingress {ingress} came first",
                ingress.namespace
            ),
        }
    }

    fn no_main(&self) -> String {
        format!("is a canary, but no other Ingress of its namespace has host {}", self.host)
    }

    fn rules(
        &self,
        accepted: &[(&HostClaim, &HostPart)],
        clients: Option<&Clients>,
        combined: &mut Combined,
    ) {
        let lost = self.deny_locations(accepted, combined);
        let mut defaults = Vec::new();
        for (index, (claim, part)) in accepted.iter().enumerate() {
            let mut close = None;
            if let Some((wanted, why)) = self.trouble_with_clients(part, clients, &combined.tls) {
                combined.problem(claim, &wanted.field, format!("{why}; the rules answer 503"));
                close = Some(closed(claim, "auth-tls-secret", &why));
            }
            if let Some(why) = &lost[index] {
                let field = format!("metadata.annotations[{NGINX}server-snippet]");
                combined.problem(claim, &field, format!("{why}; the rules answer 503"));
                close.get_or_insert_with(|| closed(claim, "server-snippet", why));
            }
            let route = |route: &Arc<Route>| close.clone().unwrap_or_else(|| route.clone());
            combined.rules.extend(part.paths.iter().map(|(path, own)| (path.clone(), route(own))));
            defaults.extend(part.default.iter().map(route));
        }
        let has_default = !defaults.is_empty();
        combined.rules.extend(defaults.into_iter().map(|route| (PathPattern::Default, route)));
        if let Some(default) = self.default.as_ref().filter(|_| !has_default) {
            combined.rules.push((PathPattern::Default, default.clone()));
        }
    }

    /// Puts the locations of snippets before all rules, for all Ingresses of the host. For each Ingress, why some of
    /// its requests would not be denied.
    fn deny_locations(
        &self,
        accepted: &[(&HostClaim, &HostPart)],
        combined: &mut Combined,
    ) -> Vec<Option<String>> {
        let host = self.host;
        let is_expression = |path: &PathPattern| matches!(path, PathPattern::Regex(_));
        let has_expressions =
            accepted.iter().any(|(_, part)| part.paths.iter().any(|(path, _)| is_expression(path)));
        let (mut seen, mut octets, mut expressions) = (HashSet::new(), 0, 0);
        let mut judge = |claim: &HostClaim, part: &HostPart| {
            let (first, _) = accepted.first()?;
            if part.denied.is_empty() {
                return None;
            }
            if claim.ingress.namespace != first.ingress.namespace {
                let owner = &first.ingress.namespace;
                return Some(format!(
                    "a location would deny requests of namespace {owner}, which has host {host}"
                ));
            }
            for location in &part.denied {
                if let PathPattern::Regex(regex) = &location.path {
                    expressions += 1;
                    octets += regex.octets();
                }
                // Of Ingresses that deny the same, the first does it for all.
                if seen.insert(comparable(&location.path, self.slashes)) {
                    combined.rules.push((location.path.clone(), location.route.clone()));
                }
            }
            if part.denied.iter().any(|location| location.is_preferred) && has_expressions {
                return Some(format!("has ^~, but host {host} has regular expressions"));
            }
            let is_much = expressions > MOST_EXPRESSIONS || octets > MOST_EXPRESSION_OCTETS;
            is_much.then(|| format!("host {host} has too many locations of snippets"))
        };
        accepted.iter().map(|(claim, part)| judge(claim, part)).collect()
    }

    /// Why the certificates that an Ingress wants of clients can't be demanded. A host has one policy for them: that of
    /// the oldest Ingress that has one. Without TLS for this very host, a less specific one could be used that demands
    /// nothing.
    fn trouble_with_clients<'a>(
        &self,
        part: &'a HostPart,
        clients: Option<&Clients>,
        tls: &Option<HostTls>,
    ) -> Option<(&'a Clients, String)> {
        let wanted = part.clients.as_ref()?;
        let host = self.host;
        let is_terminated = matches!(tls, Some(HostTls::Terminate { .. }));
        if Some(wanted) != clients {
            let why = format!("host {host} has other client certificates, of an older Ingress");
            Some((wanted, why))
        } else if !is_terminated && !wanted.certificates.optional {
            let why = format!("host {host} has no certificate, so that clients can't show theirs");
            Some((wanted, why))
        } else {
            None
        }
    }

    /// Decides about the host's TLS. Returns which certificates its clients need.
    fn tls<'a>(
        &self,
        accepted: &[(&HostClaim, &'a HostPart)],
        combined: &mut Combined,
    ) -> Option<&'a Clients> {
        let clients = accepted.iter().find_map(|(_, part)| part.clients.as_ref());
        let mut chosen: Option<(&HostClaim, &ResolvedTls)> = None;
        for (claim, part) in accepted {
            let Some(tls) = &part.tls else { continue };
            match chosen {
                None => chosen = Some((claim, tls)),
                Some((older, other)) if !same(tls, other) => {
                    let message = format!(
                        "host {} has the certificate or passthrough of Ingress {}, which came first",
                        self.host, older.ingress
                    );
                    combined.problem(claim, "spec.tls", message);
                }
                Some(_) => {}
            }
        }
        combined.tls = chosen.map(|(_, tls)| match tls {
            ResolvedTls::Terminate(_, certificate) => HostTls::Terminate {
                certificate: certificate.clone(),
                clients: clients.map(|clients| clients.certificates.clone()),
            },
            ResolvedTls::Passthrough(passthrough) => HostTls::Passthrough(passthrough.clone()),
        });
        clients
    }

    /// TLS of a host without a certificate of its own. That of a wildcard host is for the hosts of its namespace only:
    /// otherwise its owner would decide what others' clients need, and others would serve hosts under its certificate.
    /// Nor is it for a host that wants other certificates of clients.
    fn without_certificate(
        &self,
        accepted: &[(&HostClaim, &HostPart)],
        has_clients: bool,
        combined: &mut Combined,
    ) -> Option<HostTls> {
        let (claim, _) = accepted.first()?;
        let is_wanted = accepted.iter().any(|(_, part)| part.wants_tls);
        let without = HostTls::WithoutCertificate { is_wanted };
        let Some(above) = &self.above else { return is_wanted.then_some(without) };
        let is_own = self.share_hosts || above.owner == claim.ingress.namespace;
        if is_own && !has_clients {
            return None;
        }
        if !is_own && !matches!(above.tls, HostTls::WithoutCertificate { .. }) {
            let message = format!(
                "host {} has no certificate: that of {} belongs to namespace {}",
                self.host, above.pattern, above.owner
            );
            combined.problem(claim, "spec.tls", message);
        }
        Some(without)
    }

    fn canaries(&self, claims: &Claims, combined: &mut Combined) {
        // By namespace and pattern; of equal patterns, the first is served.
        let mut main: HashMap<(Arc<str>, Pattern), usize> = HashMap::new();
        for (index, (path, route)) in combined.rules.iter().enumerate() {
            let pattern = comparable(path, self.slashes);
            main.entry((route.owner.namespace.clone(), pattern)).or_insert(index);
        }
        for claim in &claims.canaries {
            self.canary(claim, &main, combined);
        }
    }

    fn canary(
        &self,
        claim: &HostClaim,
        main: &HashMap<(Arc<str>, Pattern), usize>,
        combined: &mut Combined,
    ) {
        let Some((part, share)) = self.part(claim).zip(self.share(claim)) else { return };
        let restrictions = self.restrictions(&claim.ingress);
        let rules = part.paths.iter().map(|(path, route)| (path.clone(), route));
        let default = part.default.iter().map(|route| (PathPattern::Default, route));
        let namespace: Arc<str> = claim.ingress.namespace.as_str().into();
        let mut joined = false;
        let (mut missing, mut refused) = (None, None);
        for (path, route) in rules.chain(default) {
            match main.get(&(namespace.clone(), comparable(&path, self.slashes))) {
                Some(&index) => {
                    joined = true;
                    let route_of_main = &mut combined.rules[index].1;
                    let main = &route_of_main.owner;
                    let main = ServiceName::new(&main.namespace, &main.name);
                    if route_of_main.canaries.len() == MOST_CANARIES {
                        refused = refused.or(Some(format!(
                            "path {path} of host {} has {MOST_CANARIES} canaries already",
                            self.host
                        )));
                    } else if let Action::Respond { status, .. } = route_of_main.action {
                        // A restriction may be what can't be honoured, and the policy would be without it.
                        refused = refused.or(Some(format!(
                            "is a canary of Ingress {main}, which answers {status} itself: it gets no requests"
                        )));
                    } else if restrictions.is_some_and(|own| {
                        *own != Restrictions::default() && Some(own) != self.restrictions(&main)
                    }) {
                        refused = refused.or(Some(format!(
                            "is a canary that restricts access, but the annotations of Ingress {main} apply: it gets \
                             no requests. Remove its restrictions, or set the same there"
                        )));
                    } else {
                        let canary = share.canary(route, &route_of_main.policy);
                        Arc::make_mut(route_of_main).canaries.push(canary);
                    }
                }
                None => missing = missing.or(Some(path)),
            }
        }
        if !joined {
            combined.problem(claim, "spec.rules", self.no_main());
        } else if let Some(path) = missing {
            let message = format!(
                "is a canary, but no other Ingress of its namespace has path {path} of host {}",
                self.host
            );
            combined.problem(claim, "spec.rules", message);
        }
        if let Some(message) = refused {
            combined.problem(claim, "spec.rules", message);
        }
    }

    fn restrictions(&self, ingress: &ServiceName) -> Option<&Restrictions> {
        Some(&self.resolved.get(ingress)?.restrictions)
    }

    fn share(&self, claim: &HostClaim) -> Option<&Share> {
        self.resolved.get(&claim.ingress)?.canary.as_ref()
    }

    /// The table decides which rules are never served.
    fn report_shadowed(&self, combined: &mut Combined) {
        if combined.rules.len() < 2 {
            return;
        }
        let rules = HostRules::new(self.host.clone(), combined.rules.clone(), self.slashes);
        for shadowed in rules.shadowed() {
            let (host, path) = (self.host, &shadowed.path);
            let message = match &shadowed.why {
                WhyShadowed::By(other) if other.owner == shadowed.route.owner => {
                    format!("path {path} of host {host} is there twice; the first one counts")
                }
                WhyShadowed::By(other) if is_shared_login(shadowed, other) => continue,
                WhyShadowed::By(other) => format!(
                    "path {path} of host {host} belongs to Ingress {}, which came first",
                    other.owner
                ),
                WhyShadowed::InvalidPath(why) => format!("path {path} can't match: {why}"),
                WhyShadowed::TooManyExpressions => {
                    format!("host {host} has too many regular expressions; {path} is not served")
                }
            };
            let RouteOwner { namespace, name } = &shadowed.route.owner;
            combined.add(ServiceName::new(namespace, name), "spec.rules", message);
        }
    }
}

impl Share {
    /// Under the main Ingress's policy.
    fn canary(&self, route: &Arc<Route>, main: &Arc<RoutePolicy>) -> Canary {
        let policy = if self.balance.is_some() || self.affinity.is_some() {
            let mut policy = RoutePolicy::clone(main);
            policy.balance = self.balance.clone().unwrap_or(policy.balance);
            policy.affinity = self.affinity.clone().or(policy.affinity);
            Arc::new(policy)
        } else {
            main.clone()
        };
        Canary {
            header: self.header.clone(),
            cookie: self.cookie.clone(),
            weight: self.weight,
            weight_total: self.weight_total,
            route: Arc::new(Route { policy, canaries: Vec::new(), ..Route::clone(route) }),
        }
    }
}

impl Combined {
    fn problem(&mut self, claim: &HostClaim, field: &str, message: String) {
        self.add(claim.ingress.clone(), field, message);
    }

    fn add(&mut self, ingress: ServiceName, field: &str, message: String) {
        let object = format!("Ingress {ingress}");
        self.problems.push((ingress, Problem { object, field: field.to_owned(), message }));
    }

    /// The Ingresses with problems.
    pub(crate) fn troubled(&self) -> BTreeSet<ServiceName> {
        self.problems.iter().map(|(ingress, _)| ingress.clone()).collect()
    }
}

fn closed(claim: &HostClaim, annotation: &str, why: &str) -> Arc<Route> {
    let owner = RouteOwner {
        namespace: claim.ingress.namespace.as_str().into(),
        name: claim.ingress.name.as_str().into(),
    };
    let reason = format!("{annotation} can't be honoured: {why}").into();
    let action = Action::Respond { status: StatusCode::SERVICE_UNAVAILABLE, reason };
    Arc::new(Route { owner, action, canaries: Vec::new(), policy: Arc::default() })
}

fn same(tls: &ResolvedTls, other: &ResolvedTls) -> bool {
    match (tls, other) {
        (ResolvedTls::Terminate(secret, _), ResolvedTls::Terminate(other, _)) => secret == other,
        (ResolvedTls::Passthrough(passthrough), ResolvedTls::Passthrough(other)) => {
            passthrough == other
        }
        _ => false,
    }
}

/// Equal for equal patterns: a slash at the end of a prefix does not matter.
#[derive(PartialEq, Eq, Hash)]
enum Pattern {
    Exact(String),
    Prefix(String),
    Regex(String),
    Default,
}

fn comparable(path: &PathPattern, slashes: Slashes) -> Pattern {
    let normal = |text: &str| match lb_http::path::normalize_path(text) {
        Ok(path) => lb_http::path::comparable_path(&path, slashes).into_owned(),
        Err(_) => text.to_owned(),
    };
    match path {
        PathPattern::Exact(text) => Pattern::Exact(normal(text)),
        PathPattern::Prefix(text) => {
            let text = normal(text);
            Pattern::Prefix(text.strip_suffix('/').unwrap_or(&text).to_owned())
        }
        PathPattern::Regex(regex) => Pattern::Regex(regex.text().to_owned()),
        PathPattern::Default => Pattern::Default,
    }
}

/// Whether connections are served alike.
pub(crate) fn is_same_tls(tls: &Option<Arc<HostTls>>, other: &Option<HostTls>) -> bool {
    match (tls.as_deref(), other) {
        (None, None) => true,
        (
            Some(HostTls::WithoutCertificate { is_wanted }),
            Some(HostTls::WithoutCertificate { is_wanted: other }),
        ) => is_wanted == other,
        (Some(HostTls::Passthrough(passthrough)), Some(HostTls::Passthrough(other))) => {
            passthrough == other
        }
        (
            Some(HostTls::Terminate { certificate, clients }),
            Some(HostTls::Terminate { certificate: other, clients: others }),
        ) => {
            Arc::ptr_eq(certificate, other)
                && match (clients, others) {
                    (None, None) => true,
                    (Some(clients), Some(others)) => clients.is_same(others),
                    _ => false,
                }
        }
        _ => false,
    }
}
