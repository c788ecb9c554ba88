//! Which route takes a request, and whether it serves it, as far as that can be told without asking anybody.
//!
//! A request has to pass, in this order:
//!
//! 1. its form: [`check_request`](crate::request::check_request)
//! 2. the number of requests of its source, and the connection that it came by, which the proxy knows
//! 3. the rule and its canaries: [`route_request`]
//! 4. what the route returns to everyone who has the certificate that it wants: [`ReturnedResponse`](crate::snippet::ReturnedResponse)
//! 5. its source, unless the route wants any restriction satisfied and has others: [`AccessRuling`]
//! 6. what the route answers itself, and the client's certificate: [`admit_request`]
//! 7. [`AdmittedRequest::checks`]: the client's rate, the length of the body, the token, the session,
//!    the password, the server that is asked
//! 8. an endpoint: [`Balancer::choose`](crate::balance::Balancer::choose)
//!
//! # Invariants
//!
//! - A client that may not use the route learns nothing about it, not even where it redirects to. One that could still
//!   get access by a session or a password is redirected to TLS first.
//! - A preflight, which has no credentials, comes before all checks of those.
//! - What costs more comes later: nobody computes a hash or asks a server for a request that is refused anyway.

use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_LENGTH;

use crate::access::AccessRuling;
use crate::canary::choose_route;
use crate::jwt::JwtAuth;
use crate::oidc::OidcAuth;
use crate::policy::{BasicAuth, ExternalAuth, RateLimits, RoutePolicy};
use crate::rejection::Rejection;
use crate::respond::{self, Facts};
use crate::route::{Action, Route};
use crate::table::{IngressTable, MatchedRule};
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

/// A request whose route is known.
#[derive(Clone, Debug)]
pub struct RoutedRequest<'t> {
    /// The rule that the request matches. Its route counts what clients have had, also for its canaries.
    pub rule: MatchedRule<'t>,
    /// The route of the rule, or a canary in its place.
    pub route: &'t Arc<Route>,
    pub admitted: Result<AdmittedRequest<'t>, Rejected>,
}

/// Finds the rule and the route of a request, and asks the route whether it serves the request. `random` chooses
/// between canaries.
pub fn route_request<'t>(
    table: &'t IngressTable,
    facts: &Facts,
    certificate: ClientCertificate,
    random: u64,
) -> Result<RoutedRequest<'t>, Rejection> {
    let host = facts.authority.map(|authority| &*authority.host);
    let rule = table.find(host, facts.path).ok_or(Rejection::NoRule)?;
    let route = choose_route(rule.route, facts.headers, random);
    let admitted = admit_request(route, facts, certificate);
    Ok(RoutedRequest { rule, route, admitted })
}

/// A request that its route forwards, if it passes the checks.
#[derive(Clone, Debug)]
pub struct AdmittedRequest<'r> {
    pub upstream: &'r UpstreamName,
    /// The most octets of its body; `None`: no limit.
    pub most_body: Option<u64>,
    /// What the proxy still has to check, in this order: these count, take time, or ask a server.
    pub checks: RouteChecks<'r>,
    /// What the client's source says about its access. The checks of access complete it.
    pub access: AccessRuling,
}

#[derive(Clone, Copy, Debug)]
pub enum RouteCheck<'r> {
    /// The client's requests per second, per minute and at the same time.
    Rate(&'r RateLimits),
    /// The octets of the body, if the request names their number: at most these.
    Length(u64),
    Token(&'r JwtAuth),
    /// Whether the user has signed in.
    Session(&'r OidcAuth),
    Password(&'r BasicAuth),
    ExternalAuth(&'r ExternalAuth),
}

/// The checks of a route in their order. Each is found when it is made: a request keeps this while it waits for one.
#[derive(Clone, Debug)]
pub struct RouteChecks<'r> {
    policy: &'r RoutePolicy,
    most_body: Option<u64>,
    /// Position in the list of all.
    next: usize,
}

impl<'r> Iterator for RouteChecks<'r> {
    type Item = RouteCheck<'r>;

    fn next(&mut self) -> Option<RouteCheck<'r>> {
        let rest = list_checks(self.policy, self.most_body).into_iter().enumerate().skip(self.next);
        let (index, check) = rest.filter_map(|(index, check)| Some((index, check?))).next()?;
        self.next = index + 1;
        Some(check)
    }
}

impl RouteCheck<'_> {
    /// Whether the check has to be made although others have been. Sessions are always looked for: the paths where users
    /// sign in and out are not the endpoint's, which gets the claims of those who have signed in.
    pub fn is_needed(self, access: &AccessRuling) -> bool {
        !(access.is_granted() && matches!(self, Self::Password(_) | Self::ExternalAuth(_)))
    }
}

/// Answers a request of the route by its policy, or lets it in.
pub fn admit_request<'r>(
    route: &'r Route,
    facts: &Facts,
    certificate: ClientCertificate,
) -> Result<AdmittedRequest<'r>, Rejected> {
    let policy = &*route.policy;
    let ClientCertificate { is_verified, is_demanded } = certificate;
    let lacks_certificate = (is_demanded || policy.requires_client_certificate) && !is_verified;
    let returned = policy.snippet.as_ref().and_then(|rules| rules.returned.as_ref());
    if let Some(returned) = returned.filter(|_| !lacks_certificate) {
        let rejection = Rejection::Returned(returned.status());
        return Err(Rejected { rejection, headers: returned.headers(facts) });
    }
    let access = AccessRuling::begin(policy, facts.client)?;
    if let Some(response) = respond::answer_by_policy(policy, facts) {
        let (parts, ()) = response.into_parts();
        return Err(Rejected {
            rejection: Rejection::Policy(parts.status),
            headers: parts.headers,
        });
    }
    if lacks_certificate {
        return Err(Rejection::ClientCertificate.into());
    }
    let upstream = match &route.action {
        Action::Forward(upstream) => upstream,
        Action::Respond { status, .. } => return Err(Rejection::UnservedRule(*status).into()),
    };
    let most_body = policy.most_body(upstream.protocol, facts.headers);
    let checks = RouteChecks { policy, most_body, next: 0 };
    Ok(AdmittedRequest { upstream, most_body, checks, access })
}

fn list_checks(policy: &RoutePolicy, most_body: Option<u64>) -> [Option<RouteCheck<'_>>; 6] {
    let limits = Some(&policy.limits).filter(|limits| limits.limit_anything());
    [
        limits.map(RouteCheck::Rate),
        most_body.map(RouteCheck::Length),
        policy.jwt.as_ref().map(RouteCheck::Token),
        policy.oidc.as_deref().map(RouteCheck::Session),
        policy.basic_auth.as_ref().map(RouteCheck::Password),
        policy.external_auth.as_ref().map(RouteCheck::ExternalAuth),
    ]
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
    use http::header::LOCATION;
    use http::{HeaderValue, Method, StatusCode};

    use super::*;
    use crate::host::{Authority, HostPattern};
    use crate::jwt::KeySource;
    use crate::path::PathPattern;
    use crate::policy::{Cors, CorsOrigin, Redirect, Satisfy, TlsRedirect};
    use crate::route::{Canary, RouteOwner};
    use crate::snippet::{ReturnedResponse, SnippetRules};
    use crate::upstream::UpstreamProtocol;

    /// Everything refuses the request. One after the other gives way, so that the next one is seen.
    #[test]
    fn the_route_judges_a_request_in_this_order() {
        let returned = ReturnedResponse::Text {
            status: StatusCode::IM_A_TEAPOT,
            media_type: HeaderValue::from_static("text/html"),
            text: None,
        };
        let snippet = SnippetRules { returned: Some(returned), ..SnippetRules::default() };
        let mut policy = RoutePolicy {
            snippet: Some(Arc::new(snippet)),
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
            ..RoutePolicy::default()
        };
        let unserved = StatusCode::SERVICE_UNAVAILABLE;
        let mut certificate = ClientCertificate { is_verified: false, is_demanded: true };
        let judge = |policy: &RoutePolicy, certificate| {
            let route = Route {
                owner: RouteOwner { namespace: "default".into(), name: "web".into() },
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

        let verified = ClientCertificate { is_verified: true, is_demanded: true };
        let returned = Rejection::Returned(StatusCode::IM_A_TEAPOT);
        assert_eq!(judge(&policy, verified), (returned, String::new()));
        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::FORBIDDEN, ""));
        policy.snippet = None;
        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::FORBIDDEN, ""));
        policy.satisfy = Satisfy::Any;
        assert_eq!(judge(&policy, certificate), policy_says(StatusCode::FORBIDDEN, ""));
        policy.basic_auth = Some(BasicAuth { realm: "inner".into(), users: None });
        let to_tls = policy_says(StatusCode::PERMANENT_REDIRECT, "https://a.org/");
        assert_eq!(judge(&policy, certificate), to_tls);
        policy.denied_sources.clear();
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
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        let mut policy = RoutePolicy {
            limits: RateLimits { concurrent: Some(1), ..RateLimits::default() },
            jwt: Some(JwtAuth {
                issuer: "https://id.test".into(),
                audiences: vec!["shop".into()],
                keys: KeySource::Fixed(Arc::default()),
                cookie: None,
                claim_headers: Vec::new(),
                forwards_token: false,
                realm: "inner".into(),
            }),
            oidc: Some(Arc::new(crate::oidc::tests::policy())),
            basic_auth: Some(BasicAuth { realm: "inner".into(), users: None }),
            external_auth: Some(ExternalAuth {
                upstream,
                url: "http://auth.test/".parse().unwrap(),
                method: Method::GET,
                signin: None,
                response_headers: Vec::new(),
            }),
            ..RoutePolicy::default()
        };
        let names = |policy: &RoutePolicy, most| -> Vec<&str> {
            let name = |check| match check {
                RouteCheck::Rate(_) => "rate",
                RouteCheck::Length(_) => "length",
                RouteCheck::Token(_) => "token",
                RouteCheck::Session(_) => "session",
                RouteCheck::Password(_) => "password",
                RouteCheck::ExternalAuth(_) => "external check",
            };
            RouteChecks { policy, most_body: most, next: 0 }.map(name).collect()
        };
        let all = ["rate", "length", "token", "session", "password", "external check"];
        assert_eq!(names(&policy, Some(1)), all);
        assert_eq!(
            names(&policy, None),
            ["rate", "token", "session", "password", "external check"]
        );
        policy.limits = RateLimits::default();
        assert_eq!(names(&policy, Some(1)), all[1..]);
        policy.jwt = None;
        assert_eq!(names(&policy, Some(1)), ["length", "session", "password", "external check"]);
        policy.oidc = None;
        assert_eq!(names(&policy, Some(1)), ["length", "password", "external check"]);
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

    /// The rule comes first. Its canary takes its place, also in what refuses the request, and counts under its rule.
    #[test]
    fn a_request_is_judged_by_the_canary_that_gets_it() {
        let route = |name: &str, policy, canaries| {
            let owner = RouteOwner { namespace: "default".into(), name: name.into() };
            let unserved = StatusCode::SERVICE_UNAVAILABLE;
            let action = Action::Respond { status: unserved, reason: "no Service".into() };
            Arc::new(Route { owner, action, canaries, policy: Arc::new(policy) })
        };
        let open = RoutePolicy { tls_redirect: TlsRedirect::Never, ..RoutePolicy::default() };
        let closed = RoutePolicy { requires_client_certificate: true, ..open.clone() };
        let canary = Canary {
            header: None,
            cookie: None,
            weight: 50,
            weight_total: 100,
            route: route("canary", closed, Vec::new()),
        };
        let main = route("main", open, vec![canary]);
        let mut table = IngressTable::default();
        let judge = |table: &IngressTable, random| {
            let certificate = ClientCertificate::default();
            with_preflight(|facts| {
                let routed = route_request(table, facts, certificate, random)?;
                let rejected = routed.admitted.map(|_| ()).unwrap_err();
                let owners = [&routed.rule.route.owner, &routed.route.owner];
                let names = owners.map(|owner| owner.name.to_string()).join(" ");
                Ok((names, rejected.rejection))
            })
        };

        assert_eq!(judge(&table, 0), Err(Rejection::NoRule));
        let host = HostPattern::parse("a.org").unwrap();
        table.set_host(host, vec![(PathPattern::Prefix("/".into()), main)]);
        let by_canary = ("main canary".to_owned(), Rejection::ClientCertificate);
        assert_eq!(judge(&table, 0), Ok(by_canary));
        let unserved = Rejection::UnservedRule(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(judge(&table, u64::MAX), Ok(("main main".to_owned(), unserved)));
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
