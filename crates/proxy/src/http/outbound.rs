//! A request as endpoints get it.

use std::borrow::Cow;
use std::rc::Rc;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use lb_http::headers::ClientReport;
use lb_http::request::Target;
use lb_http::{Rejection, RoutePolicy, rewrite};

use crate::body::{BodySource, RequestBody};

#[derive(Clone)]
pub(crate) struct Outbound<'a> {
    pub method: Method,
    pub uri: PathAndQuery,
    /// Without `Host` and what concerns the connection.
    pub headers: HeaderMap,
    /// Further headers. `None`: they are among the others, where the route may have replaced them.
    pub report: Option<ClientReport<'a>>,
    /// `None` only in HTTP/1.0.
    pub host: Option<HeaderValue>,
    pub upgrade: Option<HeaderValue>,
    pub is_tls: bool,
}

impl Outbound<'_> {
    /// One try over HTTP/2. `address` stands for the host if the client names none. `None`: the host is none of a URI.
    pub(crate) fn http2_request(
        &self,
        address: std::net::SocketAddr,
        source: &Rc<BodySource>,
    ) -> Option<Request<RequestBody>> {
        let authority = match &self.host {
            Some(host) => Authority::try_from(host.as_bytes()),
            None => Authority::try_from(address.to_string()),
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.is_tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(authority.ok()?);
        parts.path_and_query = Some(self.uri.clone());
        let mut request = Request::new(RequestBody::of(source));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from_parts(parts).ok()?;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        if let Some(report) = &self.report {
            report.insert_into(request.headers_mut());
        }
        Some(request)
    }
}

/// Path and query as they were matched, and as the endpoint gets them.
pub(crate) fn find_uris(
    target: &Target<'_>,
    parts: &Parts,
    policy: &RoutePolicy,
    pattern: &lb_http::PathPattern,
) -> Result<(PathAndQuery, PathAndQuery), Rejection> {
    let matched = matched_uri(target, parts)?;
    let forwarded = forwarded_uri(target, &matched, policy, pattern)?;
    Ok((matched, forwarded))
}

/// Path and query for the endpoint: what was matched, or what it is rewritten to.
fn forwarded_uri(
    target: &Target<'_>,
    matched: &PathAndQuery,
    policy: &RoutePolicy,
    pattern: &lb_http::PathPattern,
) -> Result<PathAndQuery, Rejection> {
    let Some(rewrite) = &policy.rewrite else { return Ok(matched.clone()) };
    let invalid = || Rejection::RewrittenPath;
    let rewritten = rewrite::rewrite_path(rewrite, pattern, &target.path, target.query);
    let text = rewritten.map_err(|_| invalid())?.path_and_query();
    PathAndQuery::try_from(text).map_err(|_| invalid())
}

/// Path and query as they were matched. Other servers that decide about a request must see these.
fn matched_uri(target: &Target<'_>, parts: &Parts) -> Result<PathAndQuery, Rejection> {
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
