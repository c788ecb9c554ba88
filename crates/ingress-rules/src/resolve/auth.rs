//! Basic and external authentication, and the certificates of clients.

use std::sync::Arc;

use http::{Method, Uri};
use lb_http::policy::{BasicAuth, ExternalAuth};
use lb_http::upstream::{Authorities, UpstreamProtocol, UpstreamTls};
use lb_http::{HostPattern, UpstreamName};
use lb_rules::model::ServiceName;

use super::super::annotations::VerifyClient;
use super::super::resolved::Clients;
use super::Resolver;

pub(super) const REALM: &str = "Authentication required";
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
    /// Without its Secret, no one has access. `auth-secret` alone asks for authentication, too: its author wants it.
    pub fn basic_auth(&mut self) -> Option<BasicAuth> {
        let wish = self.draft.users.clone();
        if !wish.required && wish.secret.is_none() {
            return None;
        }
        let realm = wish.realm.unwrap_or_else(|| REALM.into());
        let users = match &wish.secret {
            Some(text) => self
                .secret(text)
                .and_then(|secret| self.objects.secrets.users(&secret, wish.is_map)),
            None => Err("auth-type is set without it".to_owned()),
        };
        let users = match users {
            Ok((users, problems)) => {
                for problem in problems {
                    self.annotation_problem("auth-secret", problem);
                }
                Some(users)
            }
            Err(why) => {
                self.annotation_problem("auth-secret", format!("{why}; no one has access"));
                None
            }
        };
        Some(BasicAuth { realm, users })
    }

    pub fn external_auth(&mut self) -> Option<ExternalAuth> {
        let wish = self.draft.external.clone();
        let text = wish.url?;
        let (upstream, url) = match self.auth_server("auth-url", &text, ServerTrust::Unverified) {
            Ok(server) => server,
            Err(why) => {
                self.close("auth-url", format!("{text:?} {why}"));
                return None;
            }
        };
        let argument = wish.redirect_argument.as_deref().unwrap_or("rd");
        Some(ExternalAuth {
            upstream,
            url,
            method: wish.method.unwrap_or(Method::GET),
            signin: wish.signin.map(|signin| with_original(&signin, argument)),
            response_headers: wish.response_headers,
        })
    }

    /// Only Services of the own namespace, and hosts that the settings allow: otherwise tenants could make the proxy
    /// send requests to whatever it can reach.
    pub(crate) fn auth_server(
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

    /// Which certificates the clients of the Ingress's hosts need.
    pub fn clients(&mut self) -> Option<Clients> {
        let wish = self.draft.clients.clone();
        let optional = match wish.verify {
            Some(VerifyClient::Off) => return None,
            verify => verify == Some(VerifyClient::Optional),
        };
        let Some(text) = wish.secret else {
            if wish.verify.is_some() {
                self.close("auth-tls-verify-client", "auth-tls-secret is not set".to_owned());
            }
            return None;
        };
        let found = self.secret(&text).and_then(|secret| {
            let mut certificates = self.objects.secrets.clients(&secret, optional)?;
            certificates.pass_to_endpoint = wish.pass_to_endpoint;
            let field = self.field("auth-tls-secret").into();
            Ok(Clients { secret, certificates, field })
        });
        match found {
            Ok(clients) => Some(clients),
            Err(why) => {
                self.close("auth-tls-secret", why);
                None
            }
        }
    }
}

/// The sign-in URL with the URL of the request as an argument, unless it has it.
fn with_original(signin: &str, argument: &str) -> Arc<str> {
    let query = signin.split_once('?').map(|(_, query)| query);
    let has = |query: &str| query.split('&').any(|pair| pair.split('=').next() == Some(argument));
    match query {
        Some(query) if has(query) => signin.into(),
        Some("") => format!("{signin}{argument}=$scheme://$http_host$escaped_request_uri").into(),
        Some(_) => format!("{signin}&{argument}=$scheme://$http_host$escaped_request_uri").into(),
        None => format!("{signin}?{argument}=$scheme://$http_host$escaped_request_uri").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_url_is_added_once() {
        let original = "$scheme://$http_host$escaped_request_uri";
        assert_eq!(&*with_original("https://a/in", "rd"), format!("https://a/in?rd={original}"));
        assert_eq!(
            &*with_original("https://a/in?x=1", "rd"),
            format!("https://a/in?x=1&rd={original}")
        );
        assert_eq!(&*with_original("https://a/in?rd=/", "rd"), "https://a/in?rd=/");
    }
}
