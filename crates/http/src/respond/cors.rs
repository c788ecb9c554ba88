//! Which other sites a browser may let use the route (the Fetch standard, "CORS protocol").
//!
//! Invariant: an origin is named in a response only if it is configured, and credentials are never allowed for all
//! origins.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::facts::{Facts, empty_response};
use crate::headers::has_token;
use crate::policy::{Cors, CorsOrigin, RoutePolicy};

/// A preflight is answered without the endpoint. That of an origin that is not configured gets no headers, so that the
/// browser refuses the request.
pub(crate) fn answer_preflight(policy: &RoutePolicy, facts: &Facts) -> Option<Response<()>> {
    policy.cors.as_ref()?;
    is_preflight(facts).then(|| empty_response(StatusCode::NO_CONTENT))
}

fn is_preflight(facts: &Facts) -> bool {
    facts.method == Method::OPTIONS
        && facts.headers.contains_key(ORIGIN)
        && facts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Replaces what the endpoint says about other origins.
pub(crate) fn add_cors_headers(policy: &RoutePolicy, facts: &Facts, headers: &mut HeaderMap) {
    let Some(cors) = &policy.cors else { return };
    for name in &DECISIONS {
        headers.remove(name);
    }
    let names_origin = !cors.origins.contains(&CorsOrigin::Any);
    // Caches must not give one origin's response to another one, or to none.
    if names_origin && !has_token(headers, &VARY, "origin") && !has_token(headers, &VARY, "*") {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    let Some(origin) = facts.headers.get(ORIGIN) else { return };
    if names_origin {
        if !cors.origins.iter().any(|configured| allows(configured, origin)) {
            return;
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if cors.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    } else {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    if is_preflight(facts) {
        answer(cors, headers);
    } else if let Some(expose) = &cors.expose {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose.clone());
    }
}

fn answer(cors: &Cors, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, cors.methods.clone());
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, cors.headers.clone());
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(cors.max_age.as_secs()));
}

const DECISIONS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

fn allows(configured: &CorsOrigin, origin: &HeaderValue) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    match configured {
        CorsOrigin::Any => true,
        CorsOrigin::Exact(configured) => origin.eq_ignore_ascii_case(configured),
        CorsOrigin::Wildcard { scheme, suffix } => {
            let host =
                origin.split_once("://").filter(|(found, _)| found.eq_ignore_ascii_case(scheme));
            let label = host.and_then(|(_, host)| {
                let end = host.len().checked_sub(suffix.len())?;
                host.get(end..)?.eq_ignore_ascii_case(suffix).then(|| &host[..end])
            });
            // Several labels match: the owner of the domain owns all names below it. Nothing else does, such as a port
            // or a path in front of the suffix.
            let is_name = |octet: u8| octet.is_ascii_alphanumeric() || b"-_.".contains(&octet);
            label.is_some_and(|label| !label.is_empty() && label.bytes().all(is_name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        let wildcard =
            |suffix: &str| CorsOrigin::Wildcard { scheme: "https".into(), suffix: suffix.into() };
        let cases = [
            (CorsOrigin::Exact("https://a.org".into()), "https://A.org", true),
            (CorsOrigin::Exact("https://a.org".into()), "http://a.org", false),
            (CorsOrigin::Exact("https://a.org".into()), "https://a.org.evil", false),
            (wildcard(".a.org"), "https://b.a.org", true),
            (wildcard(".a.org"), "https://c.b.a.org", true),
            (wildcard(".a.org"), "https://a.org", false),
            (wildcard(".a.org"), "https://.a.org", false),
            (wildcard(".a.org"), "https://evila.org", false),
            (wildcard(".a.org"), "http://b.a.org", false),
            (wildcard(".a.org"), "https://b.a.org:444", false),
            (wildcard(".a.org"), "https://evil/x.a.org", false),
            (wildcard(".a.org"), "https://evil:1@b.a.org", false),
            (wildcard(".a.org:444"), "https://b.a.org:444", true),
            (wildcard(".a.org"), "null", false),
        ];
        for (configured, origin, expected) in cases {
            let value = HeaderValue::from_static(origin);
            assert_eq!(allows(&configured, &value), expected, "{configured:?} {origin}");
        }
    }
}
