//! TLS of hosts.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::IngressSpec;
use lb_http::{Action, HostPattern, PathPattern};
use lb_proxy::{Certificate, Passthrough};
use lb_rules::model::ServiceName;

use super::super::resolved::ResolvedTls;
use super::super::secrets::HostCertificate;
use super::Resolver;

impl Resolver<'_> {
    pub fn tls(&mut self, spec: &IngressSpec) {
        for (index, entry) in spec.tls.iter().flatten().enumerate() {
            let field = format!("spec.tls[{index}]");
            let hosts = self.tls_hosts(entry.hosts.as_deref().unwrap_or_default(), &field);
            let name = entry.secret_name.as_deref().filter(|name| !name.is_empty());
            let secret = name.map(|name| ServiceName::new(&self.name.namespace, name));
            let Some(tls) = self.termination(secret, &format!("{field}.secretName")) else {
                // They are claimed all the same, so that no one else gets them, and requests without TLS are redirected.
                for host in hosts {
                    self.hosts.entry(host).or_default().wants_tls = true;
                }
                continue;
            };
            for host in hosts {
                if let ResolvedTls::Terminate(Some(secret), certificate) = &tls
                    && !covers_host(certificate, &host)
                {
                    let message = format!("the certificate of Secret {secret} is not for {host}");
                    self.problem(&format!("{field}.hosts"), message);
                }
                let part = self.hosts.entry(host).or_default();
                part.wants_tls = true;
                part.tls.get_or_insert_with(|| tls.clone());
            }
        }
        if self.draft.passthrough {
            self.passthrough();
        }
    }

    /// Hosts below a wildcard host with a certificate get that as their own, to be served with their own policy.
    pub(crate) fn give_wildcard_certificates(&mut self) {
        let wildcards: Vec<(HostPattern, ResolvedTls)> = self
            .hosts
            .iter()
            .filter(|(host, _)| matches!(host, HostPattern::Wildcard(_)))
            .filter_map(|(host, part)| Some((host.clone(), part.tls.clone()?)))
            .collect();
        for (host, part) in &mut self.hosts {
            let HostPattern::Exact(name) = host else { continue };
            if part.tls.is_none() {
                let covering = wildcards.iter().find(|(pattern, _)| pattern.matches(Some(name)));
                part.tls = covering.map(|(_, tls)| tls.clone());
            }
        }
    }

    /// Without hosts, those of the rules.
    fn tls_hosts(&mut self, texts: &[String], field: &str) -> Vec<HostPattern> {
        let mut hosts = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match HostPattern::parse(text) {
                Ok(host) => hosts.push(host),
                Err(why) => {
                    self.problem(&format!("{field}.hosts[{index}]"), format!("{text:?}: {why}"))
                }
            }
        }
        if texts.is_empty() {
            hosts.extend(self.hosts.keys().cloned());
        }
        if hosts.contains(&HostPattern::Any) {
            hosts.retain(|host| *host != HostPattern::Any);
            let message =
                "TLS needs hosts: the certificate for all others is a setting of the controller";
            self.problem(&format!("{field}.hosts"), message.to_owned());
        }
        hosts
    }

    /// `None`: the default certificate.
    fn termination(&mut self, secret: Option<ServiceName>, field: &str) -> Option<ResolvedTls> {
        let wanted = match (&secret, &self.objects.settings.default_certificate) {
            (Some(secret), _) | (None, Some(secret)) => secret.clone(),
            (None, None) => {
                let message = "is not set, and the controller has no default certificate";
                self.problem(field, message.to_owned());
                return None;
            }
        };
        self.certificates.insert(wanted.clone());
        let HostCertificate { certificate, problem } = self.objects.secrets.certificate(&wanted);
        if let Some(problem) = problem {
            self.problem(field, problem);
        }
        certificate.map(|certificate| ResolvedTls::Terminate(secret, certificate))
    }

    /// Each host's TLS connections go to the backend of its path `/`.
    fn passthrough(&mut self) {
        if !self.objects.settings.passthrough {
            return self.refuse_passthrough("the controller's settings do not allow it".to_owned());
        }
        let restrictions = self.draft.restrictions();
        let has_locations = !self.draft.server_snippet.locations.is_empty();
        let unenforceable = [
            ("auth-secret", restrictions.users.is_some()),
            ("auth-url", restrictions.auth_url.is_some()),
            ("jwt-issuer", restrictions.jwt.is_set()),
            ("oidc-issuer", restrictions.oidc.is_set()),
            ("auth-tls-secret", restrictions.clients.is_some()),
            ("a snippet", self.policy.snippet.is_some() || has_locations),
        ];
        if let Some((name, _)) = unenforceable.iter().find(|(_, is_set)| *is_set) {
            let why = format!("{name} needs requests, which are encrypted for the endpoint");
            return self.refuse_passthrough(why);
        }
        if self.closed.is_some() {
            // Its rules answer 503 over the proxy's own TLS, if it has a certificate.
            return;
        }
        let mut without = Vec::new();
        for (host, part) in &mut self.hosts {
            let is_root = |path: &&(PathPattern, _)| path.0.text() == "/";
            let root = part.paths.iter().find(is_root).map(|(_, route)| route);
            match root.or(part.default.as_ref()).map(|route| &route.action) {
                Some(Action::Forward(upstream)) if *host != HostPattern::Any => {
                    part.tls = Some(ResolvedTls::Passthrough(Arc::new(Passthrough {
                        upstream: upstream.clone(),
                        proxy_protocol: self.draft.passthrough_protocol,
                        owner: self.owner.clone(),
                        allowed_sources: restrictions.allowed_sources.clone(),
                        denied_sources: restrictions.denied_sources.clone(),
                        limits: self.policy.limits.clone(),
                    })));
                }
                _ => without.push(host.clone()),
            }
        }
        for host in without {
            let message = format!("host {host} has no Service for path /");
            self.annotation_problem("tls-passthrough", message);
        }
    }

    fn refuse_passthrough(&mut self, why: String) {
        self.close("tls-passthrough", why);
        let reason = self.closed.clone().unwrap_or_default();
        let route = self.unavailable(reason);
        for part in self.hosts.values_mut() {
            part.paths.iter_mut().for_each(|(_, own)| *own = route.clone());
            part.default = part.default.as_ref().map(|_| route.clone());
            part.tls = None;
        }
    }
}

/// Whether a certificate is for a host.
pub(crate) fn covers_host(certificate: &Certificate, host: &HostPattern) -> bool {
    match host {
        HostPattern::Exact(name) => certificate.covers(name),
        HostPattern::Wildcard(suffix) => {
            let pattern = format!("*.{suffix}");
            certificate.names.contains(&pattern)
        }
        HostPattern::Any => true,
    }
}
