//! Servers beside a rule's own Service, which annotations name by a URL.

use std::sync::Arc;

use http::{HeaderValue, Uri};
use lb_http::mirror::Mirror;
use lb_http::upstream::{Authorities, UpstreamProtocol, UpstreamTls};
use lb_http::{HostPattern, UpstreamName};
use lb_rules::model::ServiceName;

use super::Resolver;

const MUST_BE_HTTPS: &str = "is outside of the cluster, so it must be a URL of https";

/// Whether a server must prove who it is.
#[derive(Clone, Debug)]
pub(super) enum ServerTrust {
    Unverified,
    /// By these authorities, in PEM. Without them, servers outside of the cluster by the public ones.
    Verified(Option<Arc<str>>),
}

impl ServerTrust {
    fn authorities(self) -> Authorities {
        match self {
            Self::Unverified => Authorities::Any,
            Self::Verified(Some(pem)) => Authorities::Pem(pem),
            Self::Verified(None) => Authorities::Public,
        }
    }
}

impl Resolver<'_> {
    /// The server in the URL of this annotation. Only Services of the own namespace, and hosts that the settings allow:
    /// otherwise tenants could make the proxy send requests to whatever it can reach.
    pub(crate) fn resolve_named_server(
        &mut self,
        annotation: &str,
        text: &str,
        trust: ServerTrust,
    ) -> Result<(UpstreamName, Uri), String> {
        if text.contains('$') {
            return Err(
                "has a variable; name the Service instead, as in http://auth.namespace.svc/verify"
                    .to_owned(),
            );
        }
        let url: Uri = text.parse().map_err(|_| "is not a URL".to_owned())?;
        let protocol = match url.scheme_str() {
            Some("http") => UpstreamProtocol::Http1,
            Some("https") => UpstreamProtocol::Https,
            _ => return Err("is not a URL of http or https".to_owned()),
        };
        let authority = url.authority().ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("has a user or password".to_owned());
        }
        let host =
            lb_http::host::normalize_host(authority.as_str()).map_err(|why| why.to_string())?;
        let default = if protocol.uses_tls() { 443 } else { 80 };
        let port: Arc<str> = url.port_u16().unwrap_or(default).to_string().into();
        let allowed = self.is_allowed(&host);
        let field = self.field(annotation);
        let in_clear = matches!(trust, ServerTrust::Verified(_)) && !protocol.uses_tls();
        let upstream = match self.service_of(&host) {
            Some(service) if service.namespace == self.name.namespace || allowed => {
                let authorities = match trust {
                    ServerTrust::Verified(Some(_)) if !protocol.uses_tls() => {
                        return Err(
                            "is no URL of https, and authorities are named for it".to_owned()
                        );
                    }
                    ServerTrust::Verified(None) if protocol.uses_tls() => {
                        return Err(
                            "is a Service with TLS, and no Secret with its ca.crt is named"
                                .to_owned(),
                        );
                    }
                    trust => trust.authorities(),
                };
                if in_clear && self.is_external_name(&service) {
                    return Err(MUST_BE_HTTPS.to_owned());
                }
                self.service_upstream(&service, &port, protocol, authorities, &field)?
            }
            None if allowed => {
                if in_clear {
                    return Err(MUST_BE_HTTPS.to_owned());
                }
                let tls = protocol.uses_tls().then(|| UpstreamTls {
                    server_name: Some((&*host).into()),
                    authorities: trust.authorities(),
                    ..UpstreamTls::default()
                });
                let upstream = UpstreamName {
                    namespace: self.owner.namespace.clone(),
                    service: (&*host).into(),
                    port,
                    protocol,
                    tls,
                };
                self.use_upstream(upstream, &field)
            }
            _ => {
                return Err("is neither a Service of this namespace nor a host that the controller's settings allow"
                    .to_owned());
            }
        };
        Ok((upstream, url))
    }

    /// The Service that a host of the cluster's domain names.
    fn service_of(&self, host: &str) -> Option<ServiceName> {
        let domain = &self.objects.settings.cluster_domain;
        let host =
            host.strip_suffix(domain.as_str()).and_then(|h| h.strip_suffix('.')).unwrap_or(host);
        match host.split('.').collect::<Vec<_>>()[..] {
            [service] => Some(ServiceName::new(&self.name.namespace, service)),
            [service, namespace, "svc"] => Some(ServiceName::new(namespace, service)),
            _ => None,
        }
    }

    fn is_allowed(&self, host: &str) -> bool {
        let allowed = &self.objects.settings.auth_hosts;
        allowed.iter().any(|pattern| {
            HostPattern::parse(pattern)
                .is_ok_and(|pattern| pattern != HostPattern::Any && pattern.matches(Some(host)))
        })
    }

    /// Where copies of requests go. It restricts nothing: without a valid server, there are no copies.
    pub fn mirror(&mut self) -> Option<Mirror> {
        let mut wish = self.draft.mirror.clone();
        let target = wish.target.take()?;
        let trust = ServerTrust::Unverified;
        let (upstream, url) =
            match self.resolve_named_server("mirror-target", &target.server, trust) {
                Ok(server) => server,
                Err(why) => {
                    let message = format!("{:?} {why}; requests are not mirrored", target.server);
                    self.annotation_problem("mirror-target", message);
                    return None;
                }
            };
        let authority = url.authority().map(http::uri::Authority::as_str);
        let is_own = url.host().and_then(|host| self.service_of(host));
        let is_own = is_own.is_some_and(|service| service.namespace == self.name.namespace);
        if !is_own && wish.host.take().is_some() {
            let message = "needs a Service of this namespace as mirror-target; copies have the host of the URL";
            self.annotation_problem("mirror-host", message.to_owned());
        }
        let host = wish.host.or_else(|| HeaderValue::from_str(authority?).ok())?;
        Some(Mirror { upstream, host, uri: target.uri, with_body: !wish.without_body })
    }
}
