//! Redirects. All that they take from the request has been normalized or checked, so that no client can end the header.

use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};

use super::facts::{Facts, empty_response};
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
    Some(redirect(*status, &format!("{}{path}", fill(location, facts))))
}

pub(crate) fn redirect_to_app_root(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    let root = policy.app_root.as_deref().filter(|_| facts.path == "/")?;
    // `//example.org` is another host; `/` would be redirected to itself.
    let is_path = root.starts_with('/') && !root.starts_with("//") && root != "/";
    is_path.then(|| redirect(StatusCode::FOUND, root))
}

/// The page where a client without access signs in.
pub fn redirect_to_sign_in(url: &str, facts: &Facts) -> Response<()> {
    redirect(StatusCode::FOUND, &fill(url, facts))
}

/// Replaces the variables of a configured URL, which are nginx's: parts of what was asked for.
fn fill(template: &str, facts: &Facts) -> String {
    let mut text = String::with_capacity(template.len() + facts.path.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        rest = after;
        let name = &after[..after.find(|next| !is_word(next)).unwrap_or(after.len())];
        match name {
            "scheme" => text.push_str(if facts.is_tls { "https" } else { "http" }),
            "host" => text.push_str(facts.authority.map_or("", |authority| &authority.host)),
            "http_host" => push_authority(&mut text, facts),
            "uri" => text.push_str(facts.path),
            "request_uri" => text.push_str(&path_and_query(facts)),
            "escaped_request_uri" => push_escaped(&mut text, &path_and_query(facts)),
            _ => {
                text.push('$');
                continue;
            }
        }
        rest = &after[name.len()..];
    }
    text.push_str(rest);
    text
}

/// Host and port as the client has named them.
fn push_authority(text: &mut String, facts: &Facts) {
    let Some(authority) = facts.authority else { return };
    text.push_str(&authority.host);
    if let Some(port) = authority.port {
        text.push_str(&format!(":{port}"));
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// As the value of an argument of a query.
fn push_escaped(text: &mut String, value: &str) {
    for octet in value.bytes() {
        if octet.is_ascii_alphanumeric() || b"-._~/".contains(&octet) {
            text.push(octet.into());
        } else {
            text.push_str(&format!("%{octet:02X}"));
        }
    }
}

fn path_and_query(facts: &Facts) -> String {
    match facts.query {
        Some(query) => format!("{}?{query}", facts.path),
        None => facts.path.to_string(),
    }
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
