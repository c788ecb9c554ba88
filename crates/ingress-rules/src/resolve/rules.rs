//! Rules: hosts, paths, default backends.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::networking::v1::{HTTPIngressPath, IngressSpec};
use lb_http::policy::Redirect;
use lb_http::table::MOST_EXPRESSIONS;
use lb_http::{Action, HostPattern, PathPattern, Route, RoutePolicy};

use super::super::paths;
use super::super::resolved::{HostPart, ResolvedTls};
use super::Resolver;

impl Resolver<'_> {
    /// Reads all rules. Returns the default backend of an Ingress without rules.
    pub fn rules(&mut self, spec: &IngressSpec) -> Option<Arc<Route>> {
        let rules = spec.rules.as_deref().unwrap_or_default();
        for (index, rule) in rules.iter().enumerate() {
            let field = format!("spec.rules[{index}]");
            let text = rule.host.as_deref().unwrap_or_default();
            let host = match HostPattern::parse(text) {
                Ok(host) => host,
                Err(why) => {
                    self.problem(&format!("{field}.host"), format!("{text:?}: {why}"));
                    continue;
                }
            };
            let mut part = self.hosts.remove(&host).unwrap_or_default();
            let found = rule.http.as_ref().map(|http| &http.paths).into_iter().flatten();
            for (index, path) in found.enumerate() {
                self.path(&mut part, path, &format!("{field}.http.paths[{index}]"));
            }
            self.hosts.insert(host, part);
        }
        let default = spec.default_backend.as_ref();
        let default = default.map(|backend| self.route(backend, "spec.defaultBackend"));
        if !rules.is_empty() {
            for part in self.hosts.values_mut() {
                part.default = default.clone();
            }
            return None;
        }
        if default.is_none() {
            self.problem("spec", "has neither rules nor a defaultBackend".to_owned());
        } else {
            self.hosts.entry(HostPattern::Any).or_default().default = default.clone();
        }
        default
    }

    fn path(&mut self, part: &mut HostPart, path: &HTTPIngressPath, field: &str) {
        let text = path.path.as_deref();
        let expressions = self.draft.reads_expressions();
        if self.expressions == MOST_EXPRESSIONS {
            let message = format!(
                "is not served: the Ingress has {MOST_EXPRESSIONS} regular expressions already"
            );
            self.problem(&format!("{field}.path"), message);
            return;
        }
        let pattern = paths::read_path(text, &path.path_type, expressions, self.draft.use_regex);
        let pattern = match pattern {
            Ok(pattern) => pattern,
            Err(why) => {
                let text = text.unwrap_or_default();
                self.problem(&format!("{field}.path"), format!("{text:?} {why}; not served"));
                return;
            }
        };
        if matches!(pattern, PathPattern::Regex(_)) {
            self.expressions += 1;
        }
        if let Some(target) = &self.draft.rewrite {
            let (highest, known) = (paths::highest_group(target), paths::count_groups(&pattern));
            if highest > known {
                let message = format!(
                    "${highest} is more than the {known} groups of path {:?}; it stands for nothing there",
                    pattern.text()
                );
                self.annotation_problem("rewrite-target", message);
            }
        }
        let route = self.route(&path.backend, &format!("{field}.backend"));
        part.paths.push((pattern, route));
    }

    /// Hosts that annotations add.
    pub(crate) fn add_hosts(&mut self) {
        let aliases = std::mem::take(&mut self.draft.aliases);
        let first = self.hosts.iter().find(|(host, _)| **host != HostPattern::Any);
        match first.map(|(_, part)| part.clone()) {
            Some(part) => {
                for alias in aliases {
                    let mut part = part.clone();
                    // Its certificate may be for other hosts.
                    part.tls = part.tls.filter(|tls| covers(tls, &alias));
                    part.wants_tls = false;
                    // One that `spec.tls` names has its own certificate, and no rules yet.
                    let known = self.hosts.entry(alias).or_default();
                    if known.paths.is_empty() && known.default.is_none() {
                        part.tls = known.tls.take().or(part.tls);
                        part.wants_tls = known.wants_tls;
                        *known = part;
                    }
                }
            }
            None if !aliases.is_empty() => {
                let message = "has no effect: the Ingress has no host".to_owned();
                self.annotation_problem("server-alias", message);
            }
            None => {}
        }
        if self.draft.www_redirect {
            let hosts: Vec<(HostPattern, Option<ResolvedTls>, bool)> = self
                .hosts
                .iter()
                .map(|(host, part)| (host.clone(), part.tls.clone(), part.wants_tls))
                .collect();
            for (host, tls, wants_tls) in hosts {
                self.add_www_redirect(&host, tls, wants_tls);
            }
        }
    }

    fn add_www_redirect(&mut self, host: &HostPattern, tls: Option<ResolvedTls>, wants_tls: bool) {
        let HostPattern::Exact(name) = host else { return };
        let other = match name.strip_prefix("www.") {
            Some(bare) if bare.contains('.') => bare.to_owned(),
            Some(_) => return,
            None => format!("www.{name}"),
        };
        let Ok(other) = HostPattern::parse(&other) else { return };
        if self.hosts.contains_key(&other) {
            return;
        }
        let scheme = if tls.is_some() || wants_tls { "https" } else { "http" };
        let policy = RoutePolicy {
            tls_redirect: lb_http::policy::TlsRedirect::Never,
            redirect: Some(Redirect {
                status: StatusCode::PERMANENT_REDIRECT,
                location: format!("{scheme}://{name}").into(),
                append_path: true,
            }),
            access_log: self.policy.access_log,
            ..RoutePolicy::default()
        };
        let route = Arc::new(Route {
            owner: self.owner.clone(),
            // The redirect comes first.
            action: Action::Respond {
                status: StatusCode::NOT_FOUND,
                reason: "www-redirect".into(),
            },
            canaries: Vec::new(),
            policy: Arc::new(policy),
        });
        let tls = tls.filter(|tls| covers(tls, &other));
        let part = HostPart { default: Some(route), tls, gives_way: true, ..HostPart::default() };
        self.hosts.insert(other, part);
    }
}

/// Whether TLS connections for a host can be served.
fn covers(tls: &ResolvedTls, host: &HostPattern) -> bool {
    match tls {
        ResolvedTls::Terminate(_, certificate) => super::tls::covers_host(certificate, host),
        ResolvedTls::Passthrough(_) => true,
    }
}
