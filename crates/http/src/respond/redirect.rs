//! Redirects. All that they take from the request has been normalized or checked, so that no client can end the header.

use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};

use super::facts::{Facts, empty_response};
use super::template::{fill_template, path_and_query};
use crate::policy::{Redirect, RoutePolicy, TlsRedirect};

/// Certificate authorities fetch challenges (ACME, RFC 8555, 8.3) over plain HTTP, before there is a certificate.
const CHALLENGES: &str = "/.well-known/acme-challenge/";

pub(crate) fn redirect_to_tls(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    let wanted = match policy.tls_redirect {
        TlsRedirect::Never => false,
        TlsRedirect::WithCertificate => facts.host_uses_tls,
        TlsRedirect::Always => true,
    };
    if facts.is_tls || !wanted || facts.path.starts_with(CHALLENGES) {
        return None;
    }
    // Only HTTP/1.0 has no host. Without one, there is no URL.
    let Some(authority) = facts.authority else {
        return Some(empty_response(StatusCode::BAD_REQUEST));
    };
    let port = if facts.tls_port == 443 { String::new() } else { format!(":{}", facts.tls_port) };
    let location = format!("https://{}{port}{}", authority.host, path_and_query(facts));
    Some(redirect(StatusCode::PERMANENT_REDIRECT, &location))
}

pub(crate) fn redirect_as_configured(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    let Redirect { status, location, append_path } = policy.redirect.as_ref()?;
    let path = if *append_path { path_and_query(facts) } else { String::new() };
    Some(redirect(*status, &format!("{}{path}", fill_template(location, facts))))
}

pub(crate) fn redirect_to_app_root(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    let root = policy.app_root.as_deref().filter(|_| facts.path == "/")?;
    // `//example.org` is another host; `/` would be redirected to itself.
    let is_path = root.starts_with('/') && !root.starts_with("//") && root != "/";
    is_path.then(|| redirect(StatusCode::FOUND, root))
}

/// The page where a client without access signs in.
pub fn redirect_to_sign_in(url: &str, facts: &Facts) -> Response<()> {
    redirect(StatusCode::FOUND, &fill_template(url, facts))
}

fn redirect(status: StatusCode, location: &str) -> Response<()> {
    // Queries may have octets beyond ASCII. What no header can have comes from the configuration only.
    let Ok(location) = HeaderValue::from_bytes(location.as_bytes()) else {
        return empty_response(StatusCode::SERVICE_UNAVAILABLE);
    };
    let mut response = empty_response(status);
    response.headers_mut().insert(LOCATION, location);
    response
}
