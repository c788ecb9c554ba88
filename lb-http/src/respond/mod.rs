//! What the proxy answers itself, and what it adds to all responses of a route.

mod cors;
mod redirect;

use std::net::IpAddr;

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::host::Authority;
use crate::policy::Policy;

pub use redirect::to_sign_in;

/// What is known about a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub client: IpAddr,
    /// Whether the client uses TLS, to this proxy or to a trusted one.
    pub is_tls: bool,
    /// Whether this proxy has a certificate for the host.
    pub has_certificate: bool,
    /// The port of TLS, as clients see it.
    pub tls_port: u16,
    pub method: &'a Method,
    /// As [`Target`](crate::request::Target) has them.
    pub authority: Option<&'a Authority<'a>>,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

/// The response to a request that is not forwarded. [`add_headers`] completes it. The order of the checks is part of
/// the behaviour: a client that may not use the route learns nothing about it, and a preflight, which has no credentials,
/// comes before all checks of those.
pub fn before_forwarding(policy: &Policy, facts: &Facts) -> Option<Response<()>> {
    if !may_use(policy, facts.client) {
        return Some(empty(StatusCode::FORBIDDEN));
    }
    redirect::to_tls(policy, facts)
        .or_else(|| redirect::configured(policy, facts))
        .or_else(|| redirect::to_app_root(policy, facts))
        .or_else(|| cors::preflight(policy, facts))
}

/// Completes a response to the client: from the endpoint, or from this proxy.
pub fn add_headers(policy: &Policy, facts: &Facts, headers: &mut HeaderMap) {
    cors::add_headers(policy, facts, headers);
    if facts.is_tls
        && let Some(value) = &policy.hsts
    {
        headers.insert(STRICT_TRANSPORT_SECURITY, value.clone());
    }
    for (name, value) in &policy.response_headers {
        headers.insert(name, value.clone());
    }
}

/// Denied sources are denied even if they are also allowed.
fn may_use(policy: &Policy, client: IpAddr) -> bool {
    let client = client.to_canonical();
    let is_denied = policy.denied_sources.iter().any(|network| network.contains(&client));
    let allowed = &policy.allowed_sources;
    !is_denied && (allowed.is_empty() || allowed.iter().any(|network| network.contains(&client)))
}

fn empty(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
