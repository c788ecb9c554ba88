//! Headers that a proxy removes, replaces and adds.

mod client;
mod forwarded;
mod hop_by_hop;
mod names;
mod values;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use client::{Client, ForwardedSource, Forwarding, Peer};
pub use hop_by_hop::{strip_request, strip_response, strip_trailers};

/// The elements of a comma-separated list. A value that is no text has none.
pub fn tokens(value: &HeaderValue) -> impl DoubleEndedIterator<Item = &str> {
    let elements =
        value.to_str().unwrap_or_default().split(',').map(|token| token.trim_matches([' ', '\t']));
    elements.filter(|token| !token.is_empty())
}

/// Whether a list, which may be spread over several lines, has an element, regardless of case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    headers.get_all(name).iter().flat_map(tokens).any(|token| token.eq_ignore_ascii_case(wanted))
}
