//! What the proxy answers itself, and what it adds to all responses of a route.

mod cors;
mod facts;
mod redirect;
mod template;

use std::net::IpAddr;

use http::header::STRICT_TRANSPORT_SECURITY;
use http::{HeaderMap, Response};
use ipnet::IpNet;

use crate::policy::RoutePolicy;

pub use facts::Facts;
pub(crate) use facts::empty_response;
pub use redirect::redirect_to_sign_in;
pub(crate) use template::fill_template;

/// The response to a request that is not forwarded. [`add_response_headers`] completes it. The order is part of the
/// behaviour: a preflight, which has no credentials, comes before all checks of those.
pub(crate) fn answer_by_policy(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    redirect::redirect_to_tls(policy, facts)
        .or_else(|| redirect::redirect_as_configured(policy, facts))
        .or_else(|| redirect::redirect_to_app_root(policy, facts))
        .or_else(|| cors::answer_preflight(policy, facts))
}

/// Completes a response to the client: from the endpoint, or from this proxy.
pub fn add_response_headers(policy: &RoutePolicy, facts: &Facts, headers: &mut HeaderMap) {
    cors::add_cors_headers(policy, facts, headers);
    if facts.is_tls
        && let Some(value) = &policy.hsts
    {
        headers.insert(STRICT_TRANSPORT_SECURITY, value.clone());
    }
    for (name, value) in &policy.response_headers {
        headers.insert(name, value.clone());
    }
}

/// Whether a client may use what has these lists; an empty list of allowed ones is all. Denied sources are denied even if they are also allowed.
pub fn may_use_route(allowed: &[IpNet], denied: &[IpNet], client: IpAddr) -> bool {
    let client = client.to_canonical();
    let is_denied = denied.iter().any(|network| network.contains(&client));
    !is_denied && (allowed.is_empty() || allowed.iter().any(|network| network.contains(&client)))
}

#[cfg(test)]
mod tests;
