//! Headers about the client.

use http::HeaderName;

pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const FORWARDED_SCHEME: HeaderName = HeaderName::from_static("x-forwarded-scheme");
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers that endpoints and authentication servers take for the word of their proxy. `X-Original-URL` and
/// `X-Rewrite-URL` replace the path in some frameworks, and so would pass by the rules. `ssl-client-...` says whose
/// certificate was verified.
pub(crate) fn is_about_client(name: &HeaderName) -> bool {
    const NAMES: [&str; 10] = [
        "forwarded",
        "x-real-ip",
        "x-scheme",
        "x-original-method",
        "x-original-uri",
        "x-original-url",
        "x-rewrite-url",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
    ];
    ["x-forwarded-", "ssl-client-"].iter().any(|prefix| name.as_str().starts_with(prefix))
        || name == "x-forwarded"
        || NAMES.contains(&name.as_str())
}
