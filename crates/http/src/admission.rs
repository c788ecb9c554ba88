//! Whether a route serves a request, as far as that can be told without asking anybody.
//!
//! In order, a request is judged by: its form ([`request::check_request`](crate::request::check_request)); the number of requests of its
//! source; the connection that it came by; the rule ([`Table::find`](crate::Table::find)) and its canaries
//! ([`choose_route`](crate::canary::choose_route)); the route ([`admit_request`]); what [`list_checks`] returns: the
//! rate of the client, the length of its body, its password, the server that the route asks; the endpoints.
//!
//! # Invariants
//!
//! - A client that may not use the route learns nothing about it, not even where it redirects to.
//! - A preflight, which has no credentials, comes before all checks of those.
//! - What costs more comes later: nobody computes a hash or asks a server for a request that is refused anyway.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use crate::policy::{BasicAuth, ExternalAuth, Policy, RateLimits};
use crate::rejection::Rejection;
use crate::respond::{self, Facts};
use crate::route::{Action, Route};
use crate::upstream::UpstreamName;

/// What TLS has proved about a client, and what the host of its request demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The client has a certificate that the host's authorities verify.
    pub is_verified: bool,
    /// The host refuses clients without a verified certificate.
    pub is_demanded: bool,
}

/// A request that the proxy answers itself.
#[derive(Clone, Debug)]
pub struct Rejected {
    pub rejection: Rejection,
    pub headers: HeaderMap,
}

impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, headers: HeaderMap::new() }
    }
}

/// The upstream that gets a request of the route.
pub fn admit_request<'r>(
    route: &'r Route,
    facts: &Facts,
    certificate: ClientCertificate,
) -> Result<&'r UpstreamName, Rejected> {
    let policy = &route.policy;
    if let Some(response) = respond::answer_by_policy(policy, facts) {
        let (parts, ()) = response.into_parts();
        return Err(Rejected {
            rejection: Rejection::Policy(parts.status),
            headers: parts.headers,
        });
    }
    let ClientCertificate { is_verified, is_demanded } = certificate;
    if (is_demanded || policy.requires_client_certificate) && !is_verified {
        return Err(Rejection::ClientCertificate.into());
    }
    match &route.action {
        Action::Forward(upstream) => Ok(upstream),
        Action::Respond { status, .. } => Err(Rejection::UnservedRule(*status).into()),
    }
}

/// What a request that [`admit_request`] lets in still has to pass. The proxy makes these checks: they count, take
/// time, or ask a server.
#[derive(Clone, Copy, Debug)]
pub enum RouteCheck<'r> {
    /// The client's requests per second, per minute and at the same time.
    Rate(&'r RateLimits),
    /// The octets of the body, if the request names their number: at most these.
    Length(u64),
    Password(&'r BasicAuth),
    ExternalAuth(&'r ExternalAuth),
}

/// The checks of a route, in the order in which they are made. `most_body` is that of [`Policy::most_body`].
pub fn list_checks(
    policy: &Policy,
    most_body: Option<u64>,
) -> impl Iterator<Item = RouteCheck<'_>> + use<'_> {
    let limits = Some(&policy.limits).filter(|limits| limits.limit_anything());
    [
        limits.map(RouteCheck::Rate),
        most_body.map(RouteCheck::Length),
        policy.basic_auth.as_ref().map(RouteCheck::Password),
        policy.external_auth.as_ref().map(RouteCheck::ExternalAuth),
    ]
    .into_iter()
    .flatten()
}

/// Refuses a body that announces more than `most` octets, before any of it is read. What announces nothing is counted
/// as it comes.
pub fn check_length(headers: &HeaderMap, most: u64) -> Result<(), Rejection> {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    match length {
        Some(length) if u64::gt(&length, &most) => Err(Rejection::BodyTooLarge),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::header::LOCATION;
    use http::{HeaderValue, Method, StatusCode};

    use super::*;
    use crate::host::Authority;
    use crate::policy::{Cors, CorsOrigin, Redirect, TlsRedirect};
    use crate::route::Owner;
    use crate::upstream::Protocol;

    /// Everything refuses the request. One after the other gives way, so that the next one is seen.
    #[test]
    fn the_route_judges_a_request_in_this_order() {
        let mut policy = Policy {
            denied_sources: vec!["192.0.2.0/24".parse().unwrap()],
            tls_redirect: TlsRedirect::Always,
            redirect: Some(Redirect {
                status: StatusCode::FOUND,
                location: "https://b.org".into(),
                append_path: false,
            }),
            app_root: Some("/app".into()),
            cors: Some(Cors {
                origins: vec![CorsOrigin::Any],
                methods: HeaderValue::from_static("GET"),
                headers: HeaderValue::from_static("X-A"),
                expose: None,
                credentials: false,
                max_age: std::time::Duration::ZERO,
            }),
            requires_client_certificate: true,
            ..Policy::default()
        };
        let unserved = StatusCode::SERVICE_UNAVAILABLE;
        let mut certificate = ClientCertificate { is_verified: false, is_demanded: true };
        let judge = |policy: &Policy, certificate| {
            let route = Route {
                owner: Owner { namespace: "default".into(), name: "web".into() },
                action: Action::Respond { status: unserved, reason: "no Service".into() },
                canaries: Vec::new(),
                policy: Arc::new(policy.clone()),
            };
            let rejected = with_preflight(|facts| admit_request(&route, facts, certificate));
            let rejected = rejected.map(|_| ()).unwrap_err();
            let location = rejected.headers.get(LOCATION).cloned();
            (rejected.rejection, location.map_or_else(String::new, |l| l.to_str().unwrap().into()))
        };
        let policy_says = |status, location: &str| (Rejection::Policy(status), location.to_owned());
        let without_location = |rejection| (rejection, String::new());

        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::FORBIDDEN, ""));
        policy.denied_sources.clear();
        let to_tls = policy_says(StatusCode::PERMANENT_REDIRECT, "https://a.org/");
        assert_eq!(judge(&policy, certificate), to_tls);
        policy.tls_redirect = TlsRedirect::Never;
        let elsewhere = policy_says(StatusCode::FOUND, "https://b.org");
        assert_eq!(judge(&policy, certificate), elsewhere);
        policy.redirect = None;
        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::FOUND, "/app"));
        policy.app_root = None;
        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::NO_CONTENT, ""));
        policy.cors = None;
        let lacking = without_location(Rejection::ClientCertificate);
        assert_eq!(judge(&policy, certificate), lacking);
        policy.requires_client_certificate = false;
        assert_eq!(judge(&policy, certificate), lacking);
        certificate.is_demanded = false;
        let unserved = without_location(Rejection::UnservedRule(unserved));
        assert_eq!(judge(&policy, certificate), unserved);
        policy.requires_client_certificate = true;
        certificate.is_verified = true;
        assert_eq!(judge(&policy, certificate), unserved);
    }

    /// A route that has all checks. Each is taken away in turn, and no other goes with it.
    #[test]
    fn the_checks_of_a_route_are_made_in_this_order() {
        let upstream = UpstreamName {
            namespace: "default".into(),
            service: "auth".into(),
            port: "80".into(),
            protocol: Protocol::Http1,
            tls: None,
        };
        let mut policy = Policy {
            limits: RateLimits { concurrent: Some(1), ..RateLimits::default() },
            basic_auth: Some(BasicAuth { realm: "inner".into(), users: None }),
            external_auth: Some(ExternalAuth {
                upstream,
                url: "http://auth.test/".parse().unwrap(),
                method: Method::GET,
                signin: None,
                response_headers: Vec::new(),
            }),
            ..Policy::default()
        };
        let names = |policy: &Policy, most| -> Vec<&str> {
            let name = |check| match check {
                RouteCheck::Rate(_) => "rate",
                RouteCheck::Length(_) => "length",
                RouteCheck::Password(_) => "password",
                RouteCheck::ExternalAuth(_) => "external check",
            };
            list_checks(policy, most).map(name).collect()
        };
        let all = ["rate", "length", "password", "external check"];
        assert_eq!(names(&policy, Some(1)), all);
        assert_eq!(names(&policy, None), ["rate", "password", "external check"]);
        policy.limits = RateLimits::default();
        assert_eq!(names(&policy, Some(1)), all[1..]);
        policy.basic_auth = None;
        assert_eq!(names(&policy, Some(1)), ["length", "external check"]);
        policy.external_auth = None;
        assert_eq!(names(&policy, Some(1)), ["length"]);
        assert!(names(&policy, None).is_empty());
        for limit in [
            RateLimits { requests_per_second: Some(1), ..RateLimits::default() },
            RateLimits { requests_per_minute: Some(1), ..RateLimits::default() },
        ] {
            policy.limits = limit;
            assert_eq!(names(&policy, None), ["rate"]);
        }
    }

    #[test]
    fn only_an_announced_length_beyond_the_limit_is_refused() {
        let cases = [
            (Some("10"), Ok(())),
            (Some("11"), Err(Rejection::BodyTooLarge)),
            (Some("18446744073709551615"), Err(Rejection::BodyTooLarge)),
            (None, Ok(())),
        ];
        for (length, expected) in cases {
            let length = length.map(|text| (CONTENT_LENGTH, HeaderValue::from_static(text)));
            assert_eq!(check_length(&HeaderMap::from_iter(length), 10), expected, "{expected:?}");
        }
    }

    fn with_preflight<T>(judge: impl FnOnce(&Facts) -> T) -> T {
        let headers = [("origin", "https://c.org"), ("access-control-request-method", "GET")];
        let headers = headers.map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::from_static(value))
        });
        judge(&Facts {
            client: "192.0.2.1".parse().unwrap(),
            is_tls: false,
            host_uses_tls: true,
            tls_port: 443,
            method: &Method::OPTIONS,
            authority: Some(&Authority::parse("a.org").unwrap()),
            path: "/",
            query: None,
            headers: &headers.into_iter().collect(),
        })
    }
}
