//! Headers that a proxy removes, replaces and adds.

mod client;
mod forwarded;
mod hop_by_hop;
mod names;
mod values;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use client::{ClientReport, ConnectionPeer, ForwardedSource, Forwarding, RequestClient};
pub use hop_by_hop::{strip_request, strip_request_trailers, strip_response, strip_trailers};

/// The elements of a comma-separated list. One that is no text hides none of the others.
pub fn list_tokens(value: &HeaderValue) -> impl DoubleEndedIterator<Item = &str> {
    let elements = value.as_bytes().split(|octet| *octet == b',').map(|token| token.trim_ascii());
    elements.filter(|token| !token.is_empty()).map(text)
}

/// What is no text becomes a character that no token, address or host contains.
fn text(octets: &[u8]) -> &str {
    str::from_utf8(octets).unwrap_or("\u{fffd}")
}

/// Whether a list, which may be spread over several lines, has an element, regardless of case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(list_tokens)
        .any(|token| token.eq_ignore_ascii_case(wanted))
}
