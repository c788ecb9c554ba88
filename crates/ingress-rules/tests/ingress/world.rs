//! What a proxy would know after some deltas, as text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::sync::Arc;

use lb_http::path::Slashes;
use lb_http::upstream::Authorities;
use lb_http::{
    Action, Canary, HostPattern, PathPattern, Route, RouteOwner, RoutePolicy, UpstreamName,
};
use lb_ingress_rules::snippets::SnippetReading;
use lb_ingress_rules::{IngressRuleSettings, Model, NamedSecrets, UpstreamTarget};
use lb_proxy::{HostTls, Passthrough};
use lb_rules::documents;
use lb_rules::model::{Kind, Object, ObjectRef, Problem, ServiceName};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

pub struct World {
    pub model: Model,
    pub hosts: BTreeMap<HostPattern, Vec<(PathPattern, Arc<Route>)>>,
    pub upstreams: BTreeMap<UpstreamName, UpstreamTarget>,
    pub tls: BTreeMap<HostPattern, Arc<HostTls>>,
    pub problems: BTreeMap<ObjectRef, Vec<Problem>>,
    pub ingresses: BTreeSet<ServiceName>,
    /// The Secrets that the source was asked for.
    secrets: NamedSecrets,
}

impl World {
    pub fn new(settings: IngressRuleSettings) -> Self {
        let model = Model::new(settings);
        Self {
            secrets: model.secrets(),
            model,
            hosts: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            tls: BTreeMap::new(),
            problems: BTreeMap::new(),
            ingresses: BTreeSet::new(),
        }
    }

    pub fn settle(&mut self) {
        let delta = self.model.settle();
        for (host, rules) in delta.hosts {
            if rules.is_empty() {
                assert!(self.hosts.remove(&host).is_some(), "{host} was not there");
            } else {
                self.hosts.insert(host, rules);
            }
        }
        for (name, backends) in delta.upstreams {
            match backends {
                Some(backends) => drop(self.upstreams.insert(name, backends)),
                None => assert!(self.upstreams.remove(&name).is_some(), "{name} was not there"),
            }
        }
        for (host, tls) in delta.tls {
            match tls {
                Some(tls) => drop(self.tls.insert(host, tls)),
                None => assert!(self.tls.remove(&host).is_some(), "{host} had no TLS"),
            }
        }
        for (object, problems) in delta.problems {
            if problems.is_empty() {
                self.problems.remove(&object);
            } else {
                self.problems.insert(object, problems);
            }
        }
        for (ingress, ours) in delta.ingresses {
            let changed =
                if ours { self.ingresses.insert(ingress) } else { self.ingresses.remove(&ingress) };
            assert!(changed);
        }
        if delta.other_secrets {
            self.secrets = self.model.secrets();
        }
        assert_eq!(self.secrets, self.model.secrets());
        // Whatever rules forward to is known.
        for (_, route) in self.hosts.values().flatten() {
            for route in route.canaries.iter().map(|canary| &canary.route).chain([route]) {
                if let Action::Forward(upstream) = &route.action {
                    assert!(self.upstreams.contains_key(upstream), "{upstream} is not known");
                }
            }
        }
    }
}

impl Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policies: BTreeMap<RouteOwner, BTreeSet<String>> = BTreeMap::new();
        for (host, rules) in &self.hosts {
            writeln!(f, "host {host}")?;
            for (path, route) in rules {
                writeln!(f, "  {path} -> {}", described(route))?;
                let mut routes = vec![route];
                for canary in &route.canaries {
                    writeln!(f, "    canary {} -> {}", share(canary), described(&canary.route))?;
                    routes.push(&canary.route);
                }
                for route in routes {
                    policies.entry(route.owner.clone()).or_default().extend(policy(&route.policy));
                }
            }
        }
        for (owner, lines) in policies.iter().filter(|(_, lines)| !lines.is_empty()) {
            writeln!(f, "policy of {owner}")?;
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        for (name, backends) in &self.upstreams {
            writeln!(f, "upstream {}", upstream(name))?;
            match backends {
                UpstreamTarget::Name { host, port } => writeln!(f, "  name {host}:{port}")?,
                UpstreamTarget::Endpoints(upstream) => {
                    let kinds =
                        [("endpoint", &upstream.endpoints), ("draining", &upstream.draining)];
                    for (kind, endpoint) in
                        kinds.iter().flat_map(|(kind, all)| all.iter().map(move |one| (kind, one)))
                    {
                        let here = if endpoint.is_local { " here" } else { "" };
                        writeln!(f, "  {kind} {}{here}", endpoint.address)?;
                    }
                }
            }
        }
        for (host, tls) in &self.tls {
            match &**tls {
                HostTls::Passthrough(passthrough) => {
                    let Passthrough { upstream: name, proxy_protocol, .. } = &**passthrough;
                    write!(f, "tls {host} passthrough to {} {proxy_protocol:?}", upstream(name))?;
                    if !passthrough.allowed_sources.is_empty() {
                        write!(f, " from {:?}", passthrough.allowed_sources)?;
                    }
                    if !passthrough.denied_sources.is_empty() {
                        write!(f, " not from {:?}", passthrough.denied_sources)?;
                    }
                    if let Some(concurrent) = passthrough.limits.concurrent {
                        write!(f, " at most {concurrent}")?;
                    }
                    writeln!(f)?;
                }
                HostTls::WithoutCertificate { is_wanted } => {
                    writeln!(f, "tls {host} without certificate, wanted={is_wanted}")?;
                }
                HostTls::Terminate { certificate, clients } => {
                    write!(f, "tls {host} certificate for {}", certificate.names.join(", "))?;
                    match clients {
                        None => writeln!(f)?,
                        Some(clients) => writeln!(
                            f,
                            ", clients optional={} passed={}",
                            clients.optional, clients.pass_to_endpoint
                        )?,
                    }
                }
            }
        }
        for problem in self.problems.values().flatten() {
            writeln!(f, "problem {problem}")?;
        }
        if self.hosts.is_empty() && self.upstreams.is_empty() && self.problems.is_empty() {
            writeln!(f, "nothing")?;
        }
        Ok(())
    }
}

pub fn described(route: &Route) -> String {
    let owner = &route.owner;
    match &route.action {
        Action::Forward(name) => format!("{} by {owner}", upstream(name)),
        Action::Respond { status, reason } => format!("{} ({reason}) by {owner}", status.as_u16()),
    }
}

fn upstream(name: &UpstreamName) -> String {
    let mut text = format!("{name} {:?}", name.protocol);
    if let Some(tls) = &name.tls {
        let server_name = tls.server_name.as_deref().unwrap_or("-");
        let verified = match tls.authorities {
            Authorities::Any => "false",
            Authorities::Public => "by public authorities",
            Authorities::Pem(_) => "true",
        };
        text += &format!(
            " (name {server_name}, verified {verified}, with certificate {})",
            tls.client.is_some()
        );
    }
    text
}

fn share(canary: &Canary) -> String {
    let mut text = format!("{}/{}", canary.weight, canary.weight_total);
    if let Some(header) = &canary.header {
        text += &format!(" header {} {:?}", header.name, header.value);
    }
    if let Some(cookie) = &canary.cookie {
        text += &format!(" cookie {cookie}");
    }
    text
}

/// The fields that differ from the default, one a line.
fn policy(policy: &RoutePolicy) -> Vec<String> {
    let default = RoutePolicy { max_body: default_settings().max_body, ..RoutePolicy::default() };
    // Redirects by the model itself.
    let mut limits = default.limits.clone();
    limits.burst_multiplier = 5;
    let default = RoutePolicy { limits, ..default };
    let (own, default) = (fields(policy), fields(&default));
    own.into_iter().filter(|field| !default.contains(field)).collect()
}

fn fields(policy: &RoutePolicy) -> Vec<String> {
    let mut fields: Vec<String> = Vec::new();
    for line in format!("{policy:#?}").lines().skip(1) {
        let indent = line.len() - line.trim_start().len();
        match fields.last_mut() {
            Some(field) if indent > 4 || line.trim().starts_with(['}', ']', ')']) => {
                *field += &format!(" {}", line.trim());
            }
            _ => fields.push(line.trim().to_owned()),
        }
    }
    if let Some(last) = fields.last_mut() {
        *last = last.trim_end_matches(" }").to_owned();
    }
    fields
}

/// What an operator decides, from the line `# settings:`.
pub fn settings(manifests: &str) -> IngressRuleSettings {
    let mut settings = IngressRuleSettings {
        node: "node-a".to_owned(),
        serve_without_class: !manifests.contains("kind: IngressClass"),
        ..default_settings()
    };
    let words = manifests.lines().filter_map(|line| line.strip_prefix("# settings: "));
    for word in words.flat_map(|line| line.split(", ")) {
        match word.split_once('=').unwrap_or((word, "")) {
            ("ingress-controller", name) => settings.controller = name.to_owned(),
            ("ingress-class", name) => settings.class = name.to_owned(),
            ("accept-nginx-classes", _) => settings.accept_nginx_classes = true,
            ("serve-without-class", _) => settings.serve_without_class = true,
            ("allow-shared-hosts", _) => settings.share_hosts = true,
            ("merge-slashes", "false") => settings.slashes = Slashes::AsSent,
            ("allow-external-names", _) => settings.external_names = true,
            ("allow-snippet-annotations", _) => settings.snippets = SnippetReading::Allowed,
            ("allow-tls-passthrough", _) => settings.passthrough = true,
            ("max-body-size", octets) => settings.max_body = Some(octets.parse().unwrap()),
            ("cluster-domain", domain) => settings.cluster_domain = domain.to_owned(),
            ("allow-cross-namespace-secrets", _) => settings.secrets_across_namespaces = true,
            ("auth-hosts", host) => settings.auth_hosts.push(host.to_owned()),
            ("default-certificate", name) => {
                let (namespace, name) = name.split_once('/').unwrap();
                settings.default_certificate = Some(ServiceName::new(namespace, name));
            }
            (other, _) => panic!("{other} is no setting"),
        }
    }
    settings
}

pub fn objects(name: &str, manifests: &str) -> Vec<Object> {
    let contents = documents::read_kinds(name, manifests, &Kind::OF_INGRESS);
    let contents = contents.unwrap_or_else(|problem| panic!("{problem}"));
    let problems: Vec<String> = contents.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{problems:?}");
    contents.objects.values().map(|object| Object::clone(object)).collect()
}

/// Certificates and keys, made when they are named first.
#[derive(Default)]
pub struct Pairs(RefCell<BTreeMap<String, (String, String)>>);

impl Pairs {
    pub fn get(&self, names: &str) -> (String, String) {
        let make = || {
            let key = KeyPair::generate().unwrap();
            let list: Vec<String> = names.split(' ').map(str::to_owned).collect();
            let mut params = CertificateParams::new(list).unwrap();
            if names == "authority" {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        self.0.borrow_mut().entry(names.to_owned()).or_insert_with(make).clone()
    }

    /// Replaces `$certificate(names)`, `$key(names)` and `$authority` by quoted texts.
    pub fn fill(&self, manifests: &str) -> String {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let mut text = manifests.replace("$authority", &quoted(&self.get("authority").0));
        for (marker, is_key) in [("$certificate(", false), ("$key(", true)] {
            while let Some(start) = text.find(marker) {
                let names = text[start + marker.len()..].split(')').next().unwrap().to_owned();
                let (certificate, key) = self.get(&names);
                let pem = if is_key { key } else { certificate };
                text = text.replace(&format!("{marker}{names})"), &quoted(&pem));
            }
        }
        text
    }
}

/// As without configuration.
pub fn default_settings() -> IngressRuleSettings {
    IngressRuleSettings {
        controller: "millrace.io/ingress-controller".to_owned(),
        accept_nginx_classes: false,
        class: "millrace".to_owned(),
        serve_without_class: false,
        slashes: Slashes::Merged,
        share_hosts: false,
        external_names: false,
        secrets_across_namespaces: false,
        passthrough: false,
        default_certificate: None,
        auth_hosts: Vec::new(),
        snippets: SnippetReading::Refused,
        max_body: Some(1 << 20),
        cluster_domain: "cluster.local".to_owned(),
        node: String::new(),
    }
}
