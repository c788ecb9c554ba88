//! Responses of the proxy itself.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};

/// A response without an endpoint.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// For the access log.
    pub reason: &'static str,
    /// Nothing more is read from an HTTP/1 connection: what follows may be the rest of an attack, or of a body.
    pub closes: bool,
}

impl Reply {
    pub fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { status, headers: HeaderMap::new(), reason, closes: false }
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    pub fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Headers and body. The body says no more than the status: what went wrong is for the access log.
    pub fn into_parts(mut self, is_http1: bool) -> (StatusCode, HeaderMap, Bytes) {
        if self.closes && is_http1 {
            self.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let has_body = !self.status.is_redirection()
            && !self.status.is_informational()
            && self.status != StatusCode::NO_CONTENT;
        if !has_body {
            return (self.status, self.headers, Bytes::new());
        }
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let text = self.status.canonical_reason().unwrap_or("error");
        let body = Bytes::from(format!("{} {text}\n", self.status.as_u16()));
        (self.status, self.headers, body)
    }
}
