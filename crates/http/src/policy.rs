//! What a route does with its requests besides choosing an endpoint. The defaults are those of the annotations in
//! `docs/ingress.md`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use ipnet::IpNet;

use crate::auth::Users;
use crate::jwt::JwtAuth;
use crate::mirror::Mirror;
use crate::oidc::OidcAuth;
use crate::proxy_protocol;
use crate::snippet::SnippetRules;
use crate::trace::RouteTracing;
use crate::upstream::{UpstreamName, UpstreamProtocol};

/// The settings of one object, shared by all its routes.
#[derive(Clone, Debug, Default)]
pub struct RoutePolicy {
    /// Most octets of a request's body; `None`: no limit.
    pub max_body: Option<u64>,
    /// Most octets of a gRPC call to endpoints that speak it: a call may be a stream without end.
    pub max_grpc_body: Option<u64>,
    pub timeouts: Timeouts,
    pub retry: Retry,
    pub tls_redirect: TlsRedirect,
    /// `Strict-Transport-Security` for responses over TLS.
    pub hsts: Option<HeaderValue>,
    /// Instead of forwarding.
    pub redirect: Option<Redirect>,
    /// Requests for `/` are redirected to this path.
    pub app_root: Option<Arc<str>>,
    pub rewrite: Option<Rewrite>,
    /// Clients that may use the route; empty: all.
    pub allowed_sources: Vec<IpNet>,
    pub denied_sources: Vec<IpNet>,
    /// Whether source, session, password and the server that is asked must all give access.
    pub satisfy: Satisfy,
    /// Refuses requests on connections without a client certificate that the host's authorities verify, so that
    /// no other host's connection and no plain text is a way around it.
    pub requires_client_certificate: bool,
    pub jwt: Option<JwtAuth>,
    pub oidc: Option<Arc<OidcAuth>>,
    pub basic_auth: Option<BasicAuth>,
    pub external_auth: Option<ExternalAuth>,
    pub cors: Option<Cors>,
    pub limits: RateLimits,
    pub balance: Balance,
    pub affinity: Option<AffinityCookie>,
    /// `Host` for the endpoint, instead of the client's.
    pub upstream_host: Option<HeaderValue>,
    /// Connections to endpoints begin with it, so each carries requests of one client only.
    pub endpoint_proxy_protocol: Option<proxy_protocol::Version>,
    /// Value of `X-Forwarded-Prefix`.
    pub forwarded_prefix: Option<HeaderValue>,
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    pub errors: Option<CustomErrors>,
    /// Gets the requests while the route's own upstream has no endpoints.
    pub fallback: Option<UpstreamName>,
    pub compress: bool,
    pub mirror: Option<Mirror>,
    pub snippet: Option<Arc<SnippetRules>>,
    /// Whether requests appear in the access log.
    pub access_log: AccessLog,
    pub tracing: RouteTracing,
}

impl RoutePolicy {
    /// Most octets of a request's body. A client's word that it is gRPC counts only where endpoints speak HTTP/2.
    pub fn most_body(&self, protocol: UpstreamProtocol, headers: &HeaderMap) -> Option<u64> {
        let is_grpc = || {
            let media = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            let rest = media.and_then(|media| media.strip_prefix(b"application/grpc"));
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
        };
        match protocol {
            UpstreamProtocol::H2c | UpstreamProtocol::Grpcs if is_grpc() => self.max_grpc_body,
            _ => self.max_body,
        }
    }

    /// Whether endpoints get this header from the proxy, and never from the client.
    pub fn sets_request_header(&self, name: &HeaderName) -> bool {
        let granted = self.external_auth.iter().flat_map(|auth| &auth.response_headers);
        let configured = self.request_headers.iter().map(|(name, _)| name);
        let by_snippet =
            || self.snippet.as_ref().is_some_and(|rules| rules.sets_request_header(name));
        granted.chain(configured).any(|known| known == name)
            || self.jwt.as_ref().is_some_and(|jwt| jwt.sets_header(name))
            || self.oidc.as_ref().is_some_and(|oidc| oidc.sets_header(name))
            || by_snippet()
    }
}

/// Which of the restrictions of access a client must satisfy: its source, its session, its password, and the server that
/// is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    #[default]
    All,
    Any,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    #[default]
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// Between two writes to the endpoint.
    pub send: Duration,
    /// Between two reads from the endpoint, and until the head of its response.
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            send: Duration::from_secs(60),
            read: Duration::from_secs(60),
        }
    }
}

/// When a request is sent to another endpoint. Only requests that no endpoint can have processed, and idempotent
/// ones whose body can be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Endpoints that are tried altogether; 1: no retry.
    pub tries: u32,
    /// All tries together; `None`: no limit.
    pub timeout: Option<Duration>,
    /// Whether a connection that ends without a response is a reason.
    pub on_error: bool,
    /// Whether an endpoint that takes too long is a reason.
    pub on_timeout: bool,
    /// Responses of endpoints that are retried if the request is idempotent.
    pub statuses: BTreeSet<u16>,
    /// Whether requests of all methods count as idempotent.
    pub non_idempotent: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            tries: 3,
            timeout: None,
            on_error: true,
            on_timeout: true,
            statuses: BTreeSet::new(),
            non_idempotent: false,
        }
    }
}

/// Whether requests without TLS are redirected to `https`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsRedirect {
    Never,
    /// If the host has a certificate.
    #[default]
    WithCertificate,
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub status: StatusCode,
    pub location: Arc<str>,
    /// Whether path and query of the request are appended.
    pub append_path: bool,
}

/// Replaces the path of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// `$1` stands for the first group of the rule's expression, and so on.
    pub target: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct BasicAuth {
    pub realm: Arc<str>,
    /// `None`: the Secret is missing, so no one is let in.
    pub users: Option<Arc<Users>>,
}

/// Asks another server whether a request may pass.
#[derive(Clone, Debug)]
pub struct ExternalAuth {
    /// Where the question is sent; `url` only has its `Host`, path and query.
    pub upstream: UpstreamName,
    pub url: Uri,
    pub method: Method,
    /// Where clients without access are redirected to.
    pub signin: Option<Arc<str>>,
    /// Headers of the server's response that are added to the request.
    pub response_headers: Vec<HeaderName>,
}

#[derive(Clone, Debug)]
pub struct Cors {
    pub origins: Vec<CorsOrigin>,
    pub methods: HeaderValue,
    pub headers: HeaderValue,
    pub expose: Option<HeaderValue>,
    pub credentials: bool,
    pub max_age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    Any,
    Exact(Arc<str>),
    /// `https://*.example.org`: scheme, and suffix with its leading dot; with port, if there is one.
    Wildcard {
        scheme: Arc<str>,
        suffix: Arc<str>,
    },
}

/// Limits for each client address. What exceeds them gets 429.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    pub requests_per_second: Option<u32>,
    pub requests_per_minute: Option<u32>,
    /// Requests beyond the rate that are accepted at once, as a multiple of it.
    pub burst_multiplier: u32,
    /// Requests at the same time.
    pub concurrent: Option<u32>,
    /// Clients without limits.
    pub exempt: Vec<IpNet>,
}

impl RateLimits {
    pub fn limit_anything(&self) -> bool {
        self.requests_per_second.is_some()
            || self.requests_per_minute.is_some()
            || self.concurrent.is_some()
    }
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default)]
pub enum Balance {
    /// The one of two random endpoints that has fewer requests.
    #[default]
    LeastOfTwo,
    /// Requests with the same key go to the same endpoint.
    Hash(HashKey),
}

/// Texts and variables, joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashKey(pub Vec<KeyPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    Text(Arc<str>),
    ClientAddress,
    Host,
    /// Path and query, as the client sent them.
    Uri,
    Path,
    Header(HeaderName),
    Cookie(Arc<str>),
    QueryArgument(Arc<str>),
}

/// A cookie that returns a client to the endpoint of its first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityCookie {
    pub name: Arc<str>,
    pub path: Option<Arc<str>>,
    pub domain: Option<Arc<str>>,
    pub max_age: Option<Duration>,
    pub same_site: Option<SameSite>,
    /// `None`: for requests over TLS.
    pub secure: Option<bool>,
    /// Whether a client moves to another endpoint only if its own is gone, and not if a request to it fails.
    pub keep_on_failure: bool,
}

impl AffinityCookie {
    /// With the default attributes, until the client closes.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            path: None,
            domain: None,
            max_age: None,
            same_site: None,
            secure: None,
            keep_on_failure: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    None,
    Lax,
    Strict,
}

/// Responses of endpoints that are replaced by those of another Service.
#[derive(Clone, Debug)]
pub struct CustomErrors {
    pub statuses: BTreeSet<u16>,
    pub upstream: UpstreamName,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_grpc_have_a_limit_of_their_own() {
        let policy =
            RoutePolicy { max_body: Some(1), max_grpc_body: None, ..RoutePolicy::default() };
        let cases = [
            (UpstreamProtocol::H2c, "application/grpc", None),
            (UpstreamProtocol::Grpcs, "application/grpc+proto", None),
            (UpstreamProtocol::H2c, "application/grpc;a=b", None),
            (UpstreamProtocol::H2c, "application/grpc-web", Some(1)),
            (UpstreamProtocol::H2c, "application/json", Some(1)),
            (UpstreamProtocol::Http1, "application/grpc", Some(1)),
            (UpstreamProtocol::Https, "application/grpc", Some(1)),
        ];
        for (protocol, media, most) in cases {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media))]);
            assert_eq!(policy.most_body(protocol, &headers), most, "{protocol:?} {media}");
        }
        assert_eq!(policy.most_body(UpstreamProtocol::H2c, &HeaderMap::new()), Some(1));
    }
}
