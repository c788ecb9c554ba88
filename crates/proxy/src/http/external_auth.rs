//! Asks another server whether a request may pass. Which one is an upstream of the snapshot, as with requests, so the
//! URL of a policy reaches nothing that its author could not reach by a route.

use std::time::Instant;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, SET_COOKIE, WWW_AUTHENTICATE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use lb_http::headers::strip_response;
use lb_http::oidc::remove_set_own_cookies;
use lb_http::policy::ExternalAuth;
use lb_http::respond::{Facts, redirect_to_sign_in};
use lb_http::{Rejection, RoutePolicy};

use super::discard::discard_body;
use super::forward::{Choice, forward_request};
use super::outbound::Outbound;
use super::record::RequestRecord;
use super::reply::OwnResponse;
use crate::body::BodySource;

/// What the server adds: to the request, and to the response.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    pub request: HeaderMap,
    pub cookies: Vec<HeaderValue>,
}

/// The facts about a request that are sent to the authentication server.
pub(crate) struct AuthRequest<'a> {
    pub method: &'a Method,
    /// The client's.
    pub host: Option<&'a HeaderValue>,
    /// Those that the endpoint would get.
    pub headers: HeaderMap,
    pub scheme: &'a str,
    pub matched_uri: &'a PathAndQuery,
    /// What a redirect names if the server wants the client to sign in.
    pub facts: &'a Facts<'a>,
}

pub(crate) async fn ask_auth_server(
    auth: &ExternalAuth,
    mut subject: AuthRequest<'_>,
    record: &mut RequestRecord,
) -> Result<Granted, OwnResponse> {
    let now = Instant::now();
    let worker = record.client.worker.clone();
    let unavailable = || OwnResponse::from(Rejection::ExternalAuthFailed);
    let endpoints = worker.endpoints(&auth.upstream, now).ok_or_else(unavailable)?;
    let source = BodySource::empty(now);
    let before = (record.endpoint, record.tries);
    let policy = RoutePolicy::default();
    let outbound = request(auth, &mut subject);
    let got = forward_request(&endpoints, &policy, &outbound, &source, Choice::default(), record);
    let got = got.await;
    (record.endpoint, record.tries) = before;
    let got = got.map_err(|_| unavailable())?;
    let (mut parts, body) = got.response.into_parts();
    discard_body(body, got.lease);
    // What describes the server's own response and connection is nothing for a request, whatever the policy names.
    strip_response(&mut parts.headers);
    remove_set_own_cookies(&mut parts.headers);
    for name in [CONTENT_LENGTH, HOST] {
        parts.headers.remove(name);
    }
    let cookies: Vec<_> = parts.headers.get_all(SET_COOKIE).iter().cloned().collect();
    if parts.status.is_success() {
        return Ok(Granted { request: chosen(auth, &parts.headers), cookies });
    }
    let mut reply = match parts.status {
        StatusCode::UNAUTHORIZED => match &auth.signin {
            Some(url) => {
                let (redirect, ()) = redirect_to_sign_in(url, subject.facts).into_parts();
                let rejection = Rejection::SignIn(redirect.status);
                OwnResponse { rejection, headers: redirect.headers }
            }
            None => {
                let mut reply = OwnResponse::from(Rejection::ExternalAuth(parts.status));
                if let Some(challenge) = parts.headers.get(WWW_AUTHENTICATE) {
                    reply = reply.with(WWW_AUTHENTICATE, challenge.clone());
                }
                reply
            }
        },
        StatusCode::FORBIDDEN => Rejection::ExternalAuth(parts.status).into(),
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
fn request(auth: &ExternalAuth, subject: &mut AuthRequest<'_>) -> Outbound<'static> {
    let mut headers = std::mem::take(&mut subject.headers);
    for name in [CONTENT_LENGTH, CONTENT_TYPE, EXPECT] {
        headers.remove(name);
    }
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let uri = subject.matched_uri.as_str();
    let host = subject.host.and_then(|host| host.to_str().ok());
    set("x-original-url", &format!("{}://{}{uri}", subject.scheme, host.unwrap_or_default()));
    set("x-original-method", subject.method.as_str());
    set("x-auth-request-redirect", uri);
    let authority = auth.url.authority().map(http::uri::Authority::as_str);
    Outbound {
        method: auth.method.clone(),
        uri: auth.url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
        headers,
        report: None,
        host: authority.and_then(|authority| HeaderValue::from_str(authority).ok()),
        upgrade: None,
        is_tls: auth.upstream.protocol.uses_tls(),
    }
}
