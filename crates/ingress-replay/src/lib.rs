//! Replays an access log under the rules of ingress-nginx and under those of Millrace, and lists the requests that
//! would be handled differently. Pure.
//!
//! Invariant: memory does not grow with the log: differences are grouped by rules, and groups are limited in number.

mod log;
mod nginx;
#[cfg(test)]
mod tests;
mod uri;

use std::collections::{BTreeMap, HashMap, btree_map};

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{Ingress, IngressServiceBackend};
use lb_http::{Action, PathPattern, host, path};
use lb_ingress_rules::{IngressRuleSettings, Model, snapshot};
use lb_proxy::Config;
use lb_rules::model::{Kind, Object, ServiceName};
use serde::Serialize;

use log::LoggedRequest;
use nginx::{MatchedServer, RequestHandling, Site};

const MOST_GROUPS: usize = 10_000;
/// Hosts that are tried for a request whose host is not in the log.
const MOST_CANDIDATES: usize = 16;
const MOST_EXAMPLE_CHARACTERS: usize = 200;

/// The requests that one rule of ingress-nginx and a different rule of Millrace serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub requests: u64,
    pub host: String,
    /// What ingress-nginx does.
    pub nginx: String,
    /// What Millrace does.
    pub millrace: String,
    pub reason: String,
    pub example: String,
}

/// What became of all lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub requests: u64,
    pub different: u64,
    /// Lines without a request that has a path.
    pub unreadable: u64,
    /// Requests whose host is unknown.
    pub without_host: u64,
    /// Requests for which the log names another upstream than ingress-nginx would have used by these Ingresses.
    pub other_upstream: u64,
    /// Of these.
    pub other_upstream_example: String,
    /// Requests that depend on expressions that only PCRE has.
    pub not_comparable: u64,
    /// Different requests that are in no group, because there are too many.
    pub not_listed: u64,
}

pub struct Replay {
    site: Site,
    config: Config,
    /// Why something of an Ingress is not served.
    problems: HashMap<ServiceName, String>,
    /// Host of requests whose line has none.
    host: Option<String>,
    differences: BTreeMap<Key, (u64, String)>,
    summary: Summary,
}

/// Host, what ingress-nginx does, what Millrace does, and why.
type Key = (String, String, String, String);

/// A decision about a request.
#[derive(Default)]
struct RouteDecision {
    ingress: Option<ServiceName>,
    /// Service and port, or a status.
    target: String,
    text: String,
    /// Why the request is refused before it is routed.
    refusal: Option<String>,
    /// The path of the rule is an expression.
    is_expression: bool,
}

impl Replay {
    /// All Ingresses count, whatever their class: leave out those that ingress-nginx does not serve. Services need not
    /// be there; of `objects`, only Secrets and Ingresses count.
    pub fn new(objects: Vec<Object>, settings: IngressRuleSettings, host: Option<String>) -> Self {
        let mut config = snapshot::new_config(&settings);
        let mut model = Model::new(IngressRuleSettings { serve_without_class: true, ..settings });
        let mut services: BTreeMap<ServiceName, Vec<ServicePort>> = BTreeMap::new();
        let mut ingresses = Vec::new();
        for object in objects {
            match object {
                Object::Ingress(ingress) => {
                    name_services(&ingress, &mut services);
                    ingresses.push(ingress);
                }
                Object::Secret(secret) => model.apply(Object::Secret(secret)),
                _ => {}
            }
        }
        let site = Site::new(ingresses.iter().map(|ingress| &**ingress));
        for (name, ports) in services {
            let mut service = Service::default();
            service.metadata.namespace = Some(name.namespace.clone());
            service.metadata.name = Some(name.name.clone());
            service.spec = Some(ServiceSpec { ports: Some(ports), ..ServiceSpec::default() });
            model.apply(Object::Service(Box::new(service)));
        }
        for mut ingress in ingresses {
            if let Some(spec) = &mut ingress.spec {
                spec.ingress_class_name = None;
            }
            if let Some(annotations) = &mut ingress.metadata.annotations {
                annotations.remove("kubernetes.io/ingress.class");
            }
            model.apply(Object::Ingress(ingress));
        }
        let delta = model.settle();
        snapshot::apply_changes(&mut config, &delta);
        let problems =
            delta.problems.into_iter().filter(|(object, _)| object.kind == Kind::Ingress);
        let problems = problems.filter_map(|(object, problems)| {
            let spec = problems.into_iter().find(|problem| problem.field.starts_with("spec"))?;
            Some((ServiceName::new(&object.namespace, &object.name), spec.message))
        });
        let problems = problems.collect();
        let summary = Summary::default();
        Self { site, config, problems, host, differences: BTreeMap::new(), summary }
    }

    /// Takes in a line of the log; `None`: it is too long.
    pub fn line(&mut self, line: Option<&str>) {
        let Some(request) = line.and_then(log::parse_log_line) else {
            self.summary.unreadable += 1;
            return;
        };
        self.summary.requests += 1;
        let read = uri::normalize_target(&request.target);
        let hosts = match request.host.as_ref().or(self.host.as_ref()) {
            Some(host) => vec![host.clone()],
            None => self.candidates(&request, read.as_deref()),
        };
        if hosts.is_empty() {
            self.summary.without_host += 1;
            return;
        }
        // A request without host counts once, for the first of the hosts where it differs.
        let mut is_different = false;
        for host in hosts {
            if self.compare(&request, &host, read.as_deref()) {
                is_different = true;
                break;
            }
        }
        self.summary.different += u64::from(is_different);
    }

    /// The hosts where ingress-nginx uses the upstream in the log for the path.
    fn candidates(&self, request: &LoggedRequest, read: Option<&[u8]>) -> Vec<String> {
        let (Some(upstream), Some(read)) = (&request.upstream, read) else { return Vec::new() };
        let is_candidate = |server: &&String| {
            let found = self.site.find_in(server, read);
            found.is_some_and(|found| upstream_of(&found.outcome).as_ref() == Some(upstream))
        };
        let servers = self.site.servers_of(upstream).iter().filter(is_candidate);
        // A wildcard stands for any of its hosts.
        servers.take(MOST_CANDIDATES).map(|server| server.replace('*', "any")).collect()
    }

    /// Returns whether Millrace would handle the request differently.
    fn compare(&mut self, request: &LoggedRequest, raw_host: &str, read: Option<&[u8]>) -> bool {
        let nginx_host = plain_host(raw_host);
        let found = read.and_then(|read| self.site.find(&nginx_host, read));
        if let Some(found) = &found {
            self.summary.check_upstream(request, raw_host, &found.outcome);
        }
        let Some(nginx) = RouteDecision::of_nginx(found.as_ref()) else {
            self.summary.not_comparable += 1;
            return false;
        };
        let ours = self.decide(raw_host, &request.target);
        if ours.target == nginx.target && ours.ingress == nginx.ingress {
            return false;
        }
        let reason = self.reason(request, found.as_ref(), &nginx, &ours);
        let server = found.map_or("*", |found| found.server);
        let server = if server == "_" { "*" } else { server };
        let key = (server.to_owned(), nginx.text, ours.text, reason);
        let is_full = self.differences.len() >= MOST_GROUPS;
        match self.differences.entry(key) {
            btree_map::Entry::Occupied(mut group) => group.get_mut().0 += 1,
            btree_map::Entry::Vacant(_) if is_full => self.summary.not_listed += 1,
            btree_map::Entry::Vacant(group) => {
                group.insert((1, example(raw_host, request)));
            }
        }
        true
    }

    fn reason(
        &self,
        request: &LoggedRequest,
        found: Option<&MatchedServer<'_>>,
        nginx: &RouteDecision,
        ours: &RouteDecision,
    ) -> String {
        if let Some(refusal) = &ours.refusal {
            return refusal.clone();
        }
        let text = match found {
            Some(found) if matches!(found.outcome, RequestHandling::SlashAppended) => {
                "a prefix also matches itself without its slash"
            }
            _ if has_encoded_slash(&request.target) => "ingress-nginx reads %2F as /",
            Some(found) if found.has_expressions && !ours.is_expression => {
                "with ingress-nginx, all paths of the host are expressions"
            }
            _ => {
                let own = nginx.ingress.as_ref().filter(|own| Some(*own) != ours.ingress.as_ref());
                let problem = own.and_then(|ingress| self.problems.get(ingress));
                problem.map_or("another rule comes first", String::as_str)
            }
        };
        text.to_owned()
    }

    /// What we do.
    fn decide(&self, raw_host: &str, target: &str) -> RouteDecision {
        let raw_path = target.split('?').next().unwrap_or_default();
        let refused = |why: String| RouteDecision {
            refusal: Some(why),
            ..RouteDecision::status("400", "400")
        };
        let host = match host::normalize_host(raw_host) {
            Ok(host) => host,
            Err(why) => return refused(why.to_string()),
        };
        let path = match path::normalize_path(raw_path) {
            Ok(path) => path,
            Err(why) => return refused(why.to_string()),
        };
        let Some(found) = self.config.table.find(Some(&host), &path) else {
            return RouteDecision::status("404", "404");
        };
        let owner = &found.route.owner;
        let ingress = ServiceName::new(&owner.namespace, &owner.name);
        let is_expression = matches!(found.path, PathPattern::Regex(_));
        let (target, text) = match &found.route.action {
            Action::Forward(upstream) => {
                (upstream.to_string(), format!("{ingress} {} -> {upstream}", found.path))
            }
            Action::Respond { status, reason } => {
                let status = status.as_u16().to_string();
                let text = format!("{ingress} {}: {status}, {reason}", found.path);
                (status, text)
            }
        };
        RouteDecision { ingress: Some(ingress), target, text, refusal: None, is_expression }
    }

    /// The differences, those of most requests first.
    pub fn finish(self) -> (Vec<Difference>, Summary) {
        let groups = self.differences.into_iter();
        let mut differences: Vec<Difference> = groups
            .map(|((host, nginx, millrace, reason), (requests, example))| Difference {
                requests,
                host,
                nginx,
                millrace,
                reason,
                example,
            })
            .collect();
        differences.sort_by_key(|difference| std::cmp::Reverse(difference.requests));
        (differences, self.summary)
    }
}

impl Summary {
    /// Compares the upstream in the log with the one that ingress-nginx uses by these Ingresses.
    fn check_upstream(
        &mut self,
        request: &LoggedRequest,
        host: &str,
        outcome: &RequestHandling<'_>,
    ) {
        let (Some(logged), Some(_)) = (&request.upstream, &request.host) else { return };
        if upstream_of(outcome).is_none_or(|upstream| upstream == *logged) {
            return;
        }
        self.other_upstream += 1;
        if self.other_upstream == 1 {
            self.other_upstream_example =
                format!("{}: [{}]", example(host, request), printable(logged));
        }
    }
}

impl RouteDecision {
    fn status(status: &str, text: &str) -> Self {
        Self { target: status.to_owned(), text: text.to_owned(), ..Self::default() }
    }

    /// `None`: it is not known.
    fn of_nginx(found: Option<&MatchedServer<'_>>) -> Option<Self> {
        let Some(found) = found else { return Some(Self::status("400", "400")) };
        Some(match &found.outcome {
            RequestHandling::Location(location) => {
                let backend = location.backend.as_ref();
                let target = backend.map(|own| format!("{}:{}", own.service, own.port));
                let target = target.unwrap_or_default();
                let path = match location.ingress_path.as_str() {
                    "" => "default",
                    path => path,
                };
                let text = format!("{} {path} -> {target}", location.ingress);
                Self { ingress: Some(location.ingress.clone()), target, text, ..Self::default() }
            }
            RequestHandling::SlashAppended => Self::status("301", "301 to the path with a slash"),
            RequestHandling::NotFound => Self::status("404", "404"),
            RequestHandling::Unknown => return None,
        })
    }
}

/// Services with the ports that an Ingress names: which rule is used does not depend on more.
fn name_services(ingress: &Ingress, services: &mut BTreeMap<ServiceName, Vec<ServicePort>>) {
    let Some(spec) = &ingress.spec else { return };
    let paths =
        spec.rules.iter().flatten().flat_map(|rule| &rule.http).flat_map(|http| &http.paths);
    let backends = paths.map(|path| &path.backend).chain(&spec.default_backend);
    let named: Vec<&IngressServiceBackend> =
        backends.filter_map(|backend| backend.service.as_ref()).collect();
    let own = ServiceName::of(&ingress.metadata);
    for backend in named {
        let Some(port) = &backend.port else { continue };
        let ports = services.entry(ServiceName::new(&own.namespace, &backend.name)).or_default();
        let port = ServicePort {
            name: port.name.clone().or_else(|| port.number.map(|number| format!("port-{number}"))),
            port: port.number.unwrap_or(1),
            ..ServicePort::default()
        };
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
}

fn upstream_of(outcome: &RequestHandling<'_>) -> Option<String> {
    match outcome {
        RequestHandling::Location(location) => {
            location.backend.as_ref().map(nginx::NginxBackend::upstream)
        }
        RequestHandling::NotFound => Some("upstream-default-backend".to_owned()),
        RequestHandling::SlashAppended | RequestHandling::Unknown => None,
    }
}

/// As nginx reads it: it checks less than we do.
fn plain_host(raw: &str) -> String {
    let name = match raw.find(']') {
        Some(end) => &raw[..=end],
        None => raw.split(':').next().unwrap_or_default(),
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn has_encoded_slash(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path.to_ascii_lowercase().contains("%2f")
}

fn example(host: &str, request: &LoggedRequest) -> String {
    printable(&format!("{} {host}{}", request.method, request.target))
}

/// What clients wrote must not control the terminal.
fn printable(text: &str) -> String {
    let mut characters = text.chars();
    let mut shown: String =
        characters.by_ref().take(MOST_EXAMPLE_CHARACTERS).flat_map(shown_character).collect();
    if characters.next().is_some() {
        shown.push_str("...");
    }
    shown
}

fn shown_character(c: char) -> Vec<char> {
    if c.is_ascii_graphic() || c == ' ' { vec![c] } else { c.escape_default().collect() }
}
