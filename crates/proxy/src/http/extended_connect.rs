//! WebSockets over HTTP/2 (RFC 8441): the client's CONNECT becomes the request of HTTP/1.1 that endpoints know, and the
//! endpoint's 101 becomes a 200.
//!
//! Invariant: the client gets a status 2xx only after the endpoint's 101. It would take any other for an open WebSocket.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::ext::Protocol;

/// Whether the request asks for a WebSocket. Other protocols are not known, so they stay what they are.
pub(crate) fn is_websocket(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    parts.method == Method::CONNECT && protocol.is_some_and(|p| p.as_str() == "websocket")
}

/// What HTTP/1.1 has and HTTP/2 has not.
pub(crate) fn translate_connect(parts: &mut Parts, random: u128) {
    parts.method = Method::GET;
    // Base64 is a valid value.
    if let Ok(key) = HeaderValue::try_from(BASE64_STANDARD.encode(random.to_ne_bytes())) {
        parts.headers.insert(SEC_WEBSOCKET_KEY, key);
    }
}

/// Turns the endpoint's 101 into the client's response.
pub(crate) fn accept_websocket(headers: &mut HeaderMap) -> StatusCode {
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    StatusCode::OK
}
