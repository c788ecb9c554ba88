//! Responses of the proxy itself.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use lb_http::admission::Rejected;
use lb_http::snippet::ReturnedResponse;
use lb_http::{Rejection, RoutePolicy};

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

impl From<OwnResponse> for Rejected {
    fn from(OwnResponse { rejection, headers }: OwnResponse) -> Self {
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
    /// Of a route, the policy may have another text.
    pub fn into_parts(
        mut self,
        status: StatusCode,
        is_http1: bool,
        policy: Option<&RoutePolicy>,
    ) -> (HeaderMap, Bytes) {
        if self.rejection.closes_connection() && is_http1 {
            self.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let has_body = !status.is_redirection()
            && !status.is_informational()
            && status != StatusCode::NO_CONTENT;
        if !has_body {
            return (self.headers, Bytes::new());
        }
        if matches!(self.rejection, Rejection::Returned(_))
            && let Some(rules) = policy.and_then(|policy| policy.snippet.as_ref())
            && let Some(ReturnedResponse::Text { media_type, text: Some(text), .. }) =
                &rules.returned
        {
            self.headers.insert(CONTENT_TYPE, media_type.clone());
            return (self.headers, Bytes::copy_from_slice(text.as_bytes()));
        }
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let text = status.canonical_reason().unwrap_or("error");
        let body = Bytes::from(format!("{} {text}\n", status.as_u16()));
        (self.headers, body)
    }
}
