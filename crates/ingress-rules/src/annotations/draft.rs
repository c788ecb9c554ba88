//! What the annotations of an Ingress ask for, before the objects that they name are looked up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;
use lb_http::policy::{
    AffinityCookie, Balance, CorsOrigin, RateLimits, Retry, SameSite, Satisfy, Timeouts,
    TlsRedirect,
};
use lb_http::snippet::SnippetRules;
use lb_http::trace::RouteTracing;
use lb_http::upstream::UpstreamProtocol;
use lb_http::{HostPattern, route::CanaryHeader};
use lb_proxy::config::ProxyProtocol;

use super::super::resolved::Restrictions;
use super::super::snippets::{SnippetScope, combine_scopes};
use super::jwt_draft::JwtDraft;
use super::oidc_draft::OidcDraft;

#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Why the rules answer 503: a restriction of access can't be honoured.
    pub closed: Option<Arc<str>>,

    /// 0: no limit.
    pub max_body: Option<u64>,
    /// There is a limit that can't be read: that of the settings is for gRPC, too.
    pub has_unknown_max_body: bool,
    pub timeouts: Timeouts,
    pub retry: Retry,
    pub protocol: Option<UpstreamProtocol>,
    pub use_regex: bool,
    pub rewrite: Option<Arc<str>>,
    pub upstream_host: Option<HeaderValue>,
    pub forwarded_prefix: Option<HeaderValue>,
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    pub compress: bool,
    pub mirror: MirrorDraft,
    pub no_access_log: bool,
    pub tracing: RouteTracing,
    pub error_statuses: BTreeSet<u16>,
    /// Name of a Service.
    pub default_backend: Option<Arc<str>>,

    pub permanent: Option<Arc<str>>,
    pub permanent_code: Option<StatusCode>,
    pub temporary: Option<Arc<str>>,
    pub temporary_code: Option<StatusCode>,
    pub app_root: Option<Arc<str>>,
    pub tls_redirect: Option<bool>,
    pub force_tls_redirect: bool,
    pub hsts: Option<HeaderValue>,

    pub allowed_sources: Vec<IpNet>,
    pub denied_sources: Vec<IpNet>,
    pub satisfy: Option<Satisfy>,
    pub server_snippet: SnippetScope,
    pub location_snippet: SnippetScope,
    pub users: UserFile,
    pub external: ExternalAuthDraft,
    pub jwt: JwtDraft,
    pub oidc: OidcDraft,
    pub clients: ClientAuth,
    pub cors: CorsDraft,
    pub limits: RateLimits,
    pub balance: Balance,
    pub affinity: bool,
    pub cookie: CookieDraft,
    pub canary: CanaryDraft,
    pub endpoints: TlsToEndpoints,

    pub aliases: Vec<HostPattern>,
    pub www_redirect: bool,
    pub passthrough: bool,
    pub passthrough_protocol: Option<ProxyProtocol>,
    pub endpoint_proxy_protocol: Option<ProxyProtocol>,
}

impl Draft {
    /// What it demands of clients.
    pub fn restrictions(&self) -> Restrictions {
        let needs_users = self.users.required || self.users.secret.is_some();
        let needs_certificates = self.clients.verify != Some(VerifyClient::Off);
        let demanded = Restrictions {
            allowed_sources: self.allowed_sources.clone(),
            denied_sources: self.denied_sources.clone(),
            users: needs_users.then(|| self.users.secret.clone().unwrap_or_default()),
            auth_url: self.external.url.clone(),
            jwt: self.jwt.clone(),
            oidc: self.oidc.clone(),
            clients: self.clients.secret.clone().filter(|_| needs_certificates),
            limits: self.limits.clone(),
            source_rules: self.snippet().map_or_else(Vec::new, |rules| rules.sources.clone()),
            satisfy: Satisfy::default(),
        };
        // Without restrictions there is nothing to satisfy.
        match demanded == Restrictions::default() {
            true => demanded,
            false => Restrictions { satisfy: self.satisfy(), ..demanded },
        }
    }

    /// What snippets add to the policy.
    pub(crate) fn snippet(&self) -> Option<Arc<SnippetRules>> {
        let has_external_auth = self.external.url.is_some();
        combine_scopes(&self.server_snippet, &self.location_snippet, has_external_auth)
    }

    /// Whether any restriction is enough. Annotation and snippet must agree.
    pub(crate) fn satisfy(&self) -> Satisfy {
        match (self.satisfy, self.location_snippet.satisfy) {
            (Some(one), Some(other)) if one != other => Satisfy::All,
            (one, other) => one.or(other).unwrap_or_default(),
        }
    }

    /// Whether paths may be regular expressions.
    pub(crate) fn reads_expressions(&self) -> bool {
        self.use_regex || self.rewrite.is_some()
    }

    /// The first reason counts.
    pub fn close(&mut self, key: &str, why: &str) {
        self.closed.get_or_insert_with(|| format!("{key} can't be honoured: {why}").into());
    }

    pub fn tls_redirect(&self) -> TlsRedirect {
        match (self.force_tls_redirect, self.tls_redirect) {
            (true, _) => TlsRedirect::Always,
            (false, Some(false)) => TlsRedirect::Never,
            (false, _) => TlsRedirect::WithCertificate,
        }
    }

    pub(crate) fn affinity_cookie(&self) -> Option<AffinityCookie> {
        let cookie = &self.cookie;
        self.affinity.then(|| AffinityCookie {
            name: cookie.name.clone().unwrap_or_else(|| "INGRESSCOOKIE".into()),
            path: cookie.path.clone(),
            domain: cookie.domain.clone(),
            max_age: cookie.max_age.or(cookie.expires),
            same_site: cookie.same_site,
            secure: cookie.secure,
            keep_on_failure: !cookie.change_on_failure,
        })
    }
}

/// Copies of requests for another server.
#[derive(Clone, Debug, Default)]
pub struct MirrorDraft {
    pub target: Option<MirrorTarget>,
    pub without_body: bool,
    pub host: Option<HeaderValue>,
}

/// A server, as `http://host:port`, and the path of copies with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorTarget {
    pub server: Arc<str>,
    pub uri: Arc<str>,
}

/// Basic authentication.
#[derive(Clone, Debug, Default)]
pub struct UserFile {
    pub required: bool,
    /// `name`, or `namespace/name`.
    pub secret: Option<Arc<str>>,
    /// The Secret has a key for each user, instead of a file.
    pub is_map: bool,
    pub realm: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub struct ExternalAuthDraft {
    pub url: Option<Arc<str>>,
    pub method: Option<Method>,
    pub signin: Option<Arc<str>>,
    /// Argument of the sign-in URL with the original URL.
    pub redirect_argument: Option<Arc<str>>,
    pub response_headers: Vec<HeaderName>,
}

/// Certificates of clients.
#[derive(Clone, Debug, Default)]
pub struct ClientAuth {
    /// `name`, or `namespace/name`.
    pub secret: Option<Arc<str>>,
    pub verify: Option<VerifyClient>,
    pub pass_to_endpoint: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyClient {
    On,
    Off,
    Optional,
}

#[derive(Clone, Debug, Default)]
pub struct CorsDraft {
    pub enabled: bool,
    pub origins: Option<Vec<CorsOrigin>>,
    pub methods: Option<HeaderValue>,
    pub headers: Option<HeaderValue>,
    pub expose: Option<HeaderValue>,
    pub no_credentials: bool,
    pub max_age: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
pub struct CookieDraft {
    pub name: Option<Arc<str>>,
    pub path: Option<Arc<str>>,
    pub domain: Option<Arc<str>>,
    pub max_age: Option<Duration>,
    pub expires: Option<Duration>,
    pub same_site: Option<SameSite>,
    pub secure: Option<bool>,
    pub change_on_failure: bool,
}

#[derive(Clone, Debug, Default)]
pub struct CanaryDraft {
    pub enabled: bool,
    pub header: Option<HeaderName>,
    pub header_value: Option<Arc<str>>,
    pub header_pattern: Option<lb_http::route::ValueRegex>,
    pub cookie: Option<Arc<str>>,
    pub weight: u32,
    pub weight_total: Option<u32>,
}

impl CanaryDraft {
    pub fn header(&self) -> Option<CanaryHeader> {
        use lb_http::route::CanaryValue;
        let value = match (&self.header_value, &self.header_pattern) {
            (Some(value), _) => CanaryValue::Exact(value.clone()),
            (None, Some(pattern)) => CanaryValue::Pattern(pattern.clone()),
            (None, None) => CanaryValue::AlwaysOrNever,
        };
        self.header.clone().map(|name| CanaryHeader { name, value })
    }
}

/// How TLS connections to endpoints are made.
#[derive(Clone, Debug, Default)]
pub struct TlsToEndpoints {
    /// Secret with authorities, and with our certificate: `name`, or `namespace/name`.
    pub secret: Option<Arc<str>>,
    pub verify: bool,
    pub name: Option<Arc<str>>,
    pub send_name: bool,
}
