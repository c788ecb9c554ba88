//! The policy of all routes of an Ingress, from its annotations.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use k8s_openapi::api::networking::v1::IngressSpec;
use lb_http::RoutePolicy;
use lb_http::policy::{AccessLog, Cors, CorsOrigin, CustomErrors, Redirect, Rewrite, TlsRedirect};

use super::super::annotations::VerifyClient;
use super::Resolver;

const BURST_MULTIPLIER: u32 = 5;
/// The defaults of ingress-nginx.
const CORS_METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const CORS_HEADERS: &str = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,\
                            Range,Authorization";
const CORS_MAX_AGE: Duration = Duration::from_secs(1_728_000);

impl Resolver<'_> {
    pub fn policy(&mut self, spec: &IngressSpec) {
        let jwt = self.jwt_auth();
        let oidc = self.oidc_auth();
        let basic_auth = self.basic_auth();
        let external_auth = self.external_auth();
        let fallback = self.fallback();
        let errors = self.errors(spec, fallback.clone());
        let mirror = self.mirror();
        let draft = &self.draft;
        let requires_client_certificate = draft.clients.secret.is_some()
            && draft.clients.verify.is_none_or(|verify| verify == VerifyClient::On);
        let max_body = match draft.max_body {
            Some(0) => None,
            Some(octets) => Some(octets),
            None => self.objects.settings.max_body,
        };
        // A limit on gRPC must be asked for: it would end streams in their midst.
        let max_grpc_body = match draft.has_unknown_max_body {
            true => self.objects.settings.max_body,
            false => draft.max_body.filter(|octets| *octets > 0),
        };
        let mut limits = draft.limits.clone();
        if limits.burst_multiplier == 0 {
            limits.burst_multiplier = BURST_MULTIPLIER;
        }
        let is_logged = !draft.no_access_log
            && !draft.location_snippet.no_access_log
            && !draft.server_snippet.no_access_log;
        self.policy = Arc::new(RoutePolicy {
            max_body,
            max_grpc_body,
            timeouts: draft.timeouts,
            retry: draft.retry.clone(),
            // A connection without TLS has no client certificate, and must not have a session.
            tls_redirect: if requires_client_certificate || draft.oidc.is_set() {
                TlsRedirect::Always
            } else {
                draft.tls_redirect()
            },
            hsts: draft.hsts.clone(),
            redirect: self.redirect(),
            app_root: draft.app_root.clone(),
            rewrite: draft.rewrite.clone().map(|target| Rewrite { target }),
            allowed_sources: draft.allowed_sources.clone(),
            denied_sources: draft.denied_sources.clone(),
            satisfy: draft.satisfy(),
            requires_client_certificate,
            jwt,
            oidc: oidc.map(Arc::new),
            basic_auth,
            external_auth,
            cors: self.cors(),
            limits,
            balance: draft.balance.clone(),
            affinity: draft.affinity_cookie(),
            upstream_host: draft.upstream_host.clone(),
            endpoint_proxy_protocol: draft.endpoint_proxy_protocol,
            forwarded_prefix: draft.forwarded_prefix.clone(),
            request_headers: draft.request_headers.clone(),
            response_headers: draft.response_headers.clone(),
            errors,
            fallback,
            compress: draft.compress,
            mirror,
            snippet: draft.snippet(),
            access_log: if is_logged { AccessLog::On } else { AccessLog::Off },
            tracing: draft.tracing.clone(),
        });
    }

    /// The temporary one takes precedence, as with ingress-nginx.
    fn redirect(&self) -> Option<Redirect> {
        let draft = &self.draft;
        let (target, code, default) = match (&draft.temporary, &draft.permanent) {
            (Some(target), _) => (target, draft.temporary_code, StatusCode::FOUND),
            (None, Some(target)) => (target, draft.permanent_code, StatusCode::MOVED_PERMANENTLY),
            (None, None) => return None,
        };
        let (status, location) = (code.unwrap_or(default), target.clone());
        Some(Redirect { status, location, append_path: false })
    }

    fn cors(&self) -> Option<Cors> {
        let cors = &self.draft.cors;
        cors.enabled.then(|| Cors {
            origins: cors.origins.clone().unwrap_or_else(|| vec![CorsOrigin::Any]),
            methods: cors.methods.clone().unwrap_or(HeaderValue::from_static(CORS_METHODS)),
            headers: cors.headers.clone().unwrap_or(HeaderValue::from_static(CORS_HEADERS)),
            expose: cors.expose.clone(),
            credentials: !cors.no_credentials,
            max_age: cors.max_age.unwrap_or(CORS_MAX_AGE),
        })
    }

    fn errors(
        &mut self,
        spec: &IngressSpec,
        fallback: Option<lb_http::UpstreamName>,
    ) -> Option<CustomErrors> {
        let statuses = self.draft.error_statuses.clone();
        if statuses.is_empty() {
            return None;
        }
        let upstream = fallback.or_else(|| {
            self.upstream(spec.default_backend.as_ref()?.service.as_ref()?, "spec.defaultBackend")
                .ok()
        });
        if upstream.is_none() {
            let message = "has no effect without default-backend or spec.defaultBackend";
            self.annotation_problem("custom-http-errors", message.to_owned());
        }
        upstream.map(|upstream| CustomErrors { statuses, upstream })
    }
}
