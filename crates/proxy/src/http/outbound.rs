//! A request as endpoints get it.

use std::borrow::Cow;
use std::rc::Rc;

use http::header::{HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use lb_http::request::Target;
use lb_http::{Policy, Rejection, rewrite};

use crate::body::{RequestBody, Source};

#[derive(Clone)]
pub(crate) struct Outbound {
    pub method: Method,
    pub uri: PathAndQuery,
    /// Without `Host` and what concerns the connection.
    pub headers: HeaderMap,
    /// `None` only in HTTP/1.0.
    pub host: Option<HeaderValue>,
    pub upgrade: Option<HeaderValue>,
    pub is_tls: bool,
}

impl Outbound {
    /// One try. `address` stands for the host if the client names none.
    pub fn request(
        self,
        is_http2: bool,
        address: std::net::SocketAddr,
        source: &Rc<Source>,
    ) -> Option<Request<RequestBody>> {
        let Self { method, uri, mut headers, host, upgrade, is_tls } = self;
        let mut request = Request::new(RequestBody::of(source));
        *request.method_mut() = method;
        let host = match host {
            Some(host) => host,
            None => HeaderValue::try_from(address.to_string()).ok()?,
        };
        if is_http2 {
            let scheme = if is_tls { Scheme::HTTPS } else { Scheme::HTTP };
            let mut parts = http::uri::Parts::default();
            parts.scheme = Some(scheme);
            parts.authority = Some(Authority::try_from(host.as_bytes()).ok()?);
            parts.path_and_query = Some(uri);
            *request.uri_mut() = Uri::from_parts(parts).ok()?;
            *request.version_mut() = Version::HTTP_2;
        } else {
            *request.uri_mut() = Uri::from(uri);
            headers.insert(HOST, host);
            if let Some(protocol) = upgrade {
                headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocol);
            }
            // Hyper frames bodies of unknown length only for methods that usually have one.
            if source.has_unknown_length() {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        *request.headers_mut() = headers;
        Some(request)
    }
}

/// Path and query for the endpoint: what was matched, or what it is rewritten to.
pub(crate) fn forwarded_uri(
    target: &Target<'_>,
    matched: &PathAndQuery,
    policy: &Policy,
    pattern: &lb_http::PathPattern,
) -> Result<PathAndQuery, Rejection> {
    let Some(rewrite) = &policy.rewrite else { return Ok(matched.clone()) };
    let invalid = || Rejection::RewrittenPath;
    let rewritten = rewrite::rewrite_path(rewrite, pattern, &target.path, target.query);
    let text = rewritten.map_err(|_| invalid())?.path_and_query();
    PathAndQuery::try_from(text).map_err(|_| invalid())
}

/// Path and query as they were matched. Other servers that decide about a request must see these.
pub(crate) fn matched_uri(target: &Target<'_>, parts: &Parts) -> Result<PathAndQuery, Rejection> {
    if let (Cow::Borrowed(_), Some(uri)) = (&target.path, parts.uri.path_and_query())
        && uri.path() == &*target.path
    {
        return Ok(uri.clone());
    }
    let text = match target.query {
        Some(query) => format!("{}?{query}", target.path),
        None => target.path.to_string(),
    };
    PathAndQuery::try_from(text).map_err(|_| Rejection::Path)
}
