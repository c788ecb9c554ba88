//! Asks another server whether a request may pass.
//!
//! Invariant: the other server is never one that the policy's author could not reach by other means: addresses in
//! `Settings::denied_auth_targets` are not connected to, whatever a name resolves to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, SET_COOKIE, WWW_AUTHENTICATE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use lb_http::policy::ExternalAuth;
use lb_http::upstream::{Protocol, UpstreamTls};
use lb_http::{Endpoint, Policy, Upstream, UpstreamName};
use tokio::time::timeout;

use super::forward::{Choice, forward};
use super::outbound::Outbound;
use super::record::Record;
use super::reply::Reply;
use crate::body::Source;
use crate::upstream::Endpoints;
use crate::worker::Worker;

/// Servers by scheme and authority. Names are resolved again when this is older than `RESOLVED`.
#[derive(Default)]
pub(crate) struct AuthServers(RefCell<HashMap<String, Known>>);

struct Known {
    endpoints: Rc<Endpoints>,
    upstream: Arc<Upstream>,
    resolved: Instant,
}

const RESOLVED: Duration = Duration::from_secs(5);
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// Servers that are remembered; policies that name more make others be resolved again.
const MOST_SERVERS: usize = 1_000;

/// What the server adds: to the request, and to the response.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    pub request: HeaderMap,
    pub cookies: Vec<HeaderValue>,
}

/// Facts about the request that the server is told.
pub(crate) struct Subject<'a> {
    pub outbound: &'a Outbound,
    pub scheme: &'a str,
    pub original_uri: Option<&'a PathAndQuery>,
    /// The response if the server wants the client to sign in.
    pub sign_in: Option<Response<()>>,
}

pub(crate) async fn ask(
    auth: &ExternalAuth,
    subject: Subject<'_>,
    record: &mut Record,
) -> Result<Granted, Reply> {
    let worker = record.client.worker.clone();
    let unavailable = || Reply::new(StatusCode::INTERNAL_SERVER_ERROR, "external_auth_failed");
    let endpoints = resolve(&worker, auth).await.ok_or_else(unavailable)?;
    let source = Source::empty(Instant::now());
    let before = (record.endpoint, record.tries);
    let policy = Policy::default();
    let outbound = request(auth, &subject);
    let got = forward(&endpoints, &policy, outbound, &source, None, Choice::default(), record);
    let got = Box::pin(got).await;
    (record.endpoint, record.tries) = before;
    let got = got.map_err(|_| unavailable())?;
    let (parts, body) = got.response.into_parts();
    if body.is_end_stream() {
        got.lease.finish();
    }
    let cookies: Vec<_> = parts.headers.get_all(SET_COOKIE).iter().cloned().collect();
    if parts.status.is_success() {
        return Ok(Granted { request: chosen(auth, &parts.headers), cookies });
    }
    let mut reply = match parts.status {
        StatusCode::UNAUTHORIZED => match subject.sign_in {
            Some(redirect) => {
                let mut reply = Reply::new(redirect.status(), "external_auth_sign_in");
                reply.headers = redirect.into_parts().0.headers;
                reply
            }
            None => {
                let mut reply = Reply::new(StatusCode::UNAUTHORIZED, "external_auth");
                if let Some(challenge) = parts.headers.get(WWW_AUTHENTICATE) {
                    reply = reply.with(WWW_AUTHENTICATE, challenge.clone());
                }
                reply
            }
        },
        StatusCode::FORBIDDEN => Reply::new(StatusCode::FORBIDDEN, "external_auth"),
        _ => unavailable(),
    };
    for cookie in cookies {
        reply = reply.with(SET_COOKIE, cookie);
    }
    Err(reply)
}

fn chosen(auth: &ExternalAuth, headers: &HeaderMap) -> HeaderMap {
    let mut chosen = HeaderMap::new();
    for name in &auth.response_headers {
        for value in headers.get_all(name) {
            chosen.append(name, value.clone());
        }
    }
    chosen
}

/// The server gets the request's headers, but for its body's, and where the request goes to.
fn request(auth: &ExternalAuth, subject: &Subject<'_>) -> Outbound {
    let mut headers = subject.outbound.headers.clone();
    for name in [CONTENT_LENGTH, CONTENT_TYPE, EXPECT] {
        headers.remove(name);
    }
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let uri = subject.original_uri.map_or("/", PathAndQuery::as_str);
    let host = subject.outbound.host.as_ref().and_then(|host| host.to_str().ok());
    set("x-original-url", &format!("{}://{}{uri}", subject.scheme, host.unwrap_or_default()));
    set("x-original-method", subject.outbound.method.as_str());
    set("x-auth-request-redirect", uri);
    let authority = auth.url.authority().map(http::uri::Authority::as_str);
    Outbound {
        method: auth.method.clone(),
        uri: auth.url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
        headers,
        host: authority.and_then(|authority| HeaderValue::from_str(authority).ok()),
        upgrade: None,
        is_tls: auth.url.scheme_str() == Some("https"),
    }
}

async fn resolve(worker: &Worker, auth: &ExternalAuth) -> Option<Rc<Endpoints>> {
    let authority = auth.url.authority()?;
    let is_tls = auth.url.scheme_str() == Some("https");
    let key = format!("{}://{authority}", if is_tls { "https" } else { "http" });
    let now = Instant::now();
    if let Some(known) = worker.auth_servers.0.borrow().get(&key)
        && now.saturating_duration_since(known.resolved) < RESOLVED
    {
        return Some(known.endpoints.clone());
    }
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let found = timeout(RESOLVE_LIMIT, tokio::net::lookup_host((host, port))).await.ok()?.ok()?;
    let denied = &worker.shared.settings.denied_auth_targets;
    let is_allowed = |address: &SocketAddr| {
        let ip = address.ip();
        !denied.iter().any(|net| net.contains(&ip) || net.contains(&ip.to_canonical()))
    };
    let mut addresses: Vec<_> = found.filter(is_allowed).collect();
    addresses.sort();
    addresses.dedup();
    let endpoints = addresses.iter().map(|&address| Endpoint { address, is_local: false });
    let upstream = Upstream { endpoints: endpoints.collect(), draining: Vec::new() };
    let mut servers = worker.auth_servers.0.borrow_mut();
    if let Some(known) = servers.get_mut(&key) {
        known.resolved = now;
        if *known.upstream != upstream {
            known.upstream = Arc::new(upstream);
            known.endpoints.update(&known.upstream, now);
        }
        return Some(known.endpoints.clone());
    }
    if servers.len() >= MOST_SERVERS {
        servers.clear();
    }
    let upstream = Arc::new(upstream);
    let tls = UpstreamTls { server_name: Some(host.into()), ..UpstreamTls::default() };
    let name = UpstreamName {
        namespace: "".into(),
        service: host.into(),
        port: port.to_string().into(),
        protocol: if is_tls { Protocol::Https } else { Protocol::Http1 },
        tls: is_tls.then_some(tls),
    };
    let endpoints = Endpoints::new(name, upstream.clone(), &worker.shared.balancing, now);
    servers.insert(key, Known { endpoints: endpoints.clone(), upstream, resolved: now });
    Some(endpoints)
}
