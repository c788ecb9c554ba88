//! Responses of the proxy itself.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use lb_http::Rejection;
use lb_http::admission::Rejected;

/// A response without an endpoint.
#[derive(Debug)]
pub(crate) struct OwnResponse {
    pub rejection: Rejection,
    pub headers: HeaderMap,
}

impl From<Rejection> for OwnResponse {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, headers: HeaderMap::new() }
    }
}

impl From<Rejected> for OwnResponse {
    fn from(Rejected { rejection, headers }: Rejected) -> Self {
        Self { rejection, headers }
    }
}

impl OwnResponse {
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Headers and body of a response with this status. The body says no more than the status: what went wrong is for
    /// the access log.
    pub fn into_parts(mut self, status: StatusCode, is_http1: bool) -> (HeaderMap, Bytes) {
        if self.rejection.closes_connection() && is_http1 {
            self.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let has_body = !status.is_redirection()
            && !status.is_informational()
            && status != StatusCode::NO_CONTENT;
        if !has_body {
            return (self.headers, Bytes::new());
        }
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let text = status.canonical_reason().unwrap_or("error");
        let body = Bytes::from(format!("{} {text}\n", status.as_u16()));
        (self.headers, body)
    }
}
