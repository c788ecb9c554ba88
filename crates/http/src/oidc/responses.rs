//! Responses to browsers, and the URLs in them.

use http::header::{CACHE_CONTROL, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode, Uri};

use crate::host::Authority;
use crate::respond::empty_response;

/// For clients that cannot show a page of the provider.
pub fn demand_session() -> Response<()> {
    let mut response = respond_uncached(StatusCode::UNAUTHORIZED);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Cookie"));
    response
}

/// A response that is this browser's, and only now.
pub(super) fn respond_uncached(status: StatusCode) -> Response<()> {
    let mut response = empty_response(status);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn redirect_to(url: &str) -> Response<()> {
    // What no header can have comes from the provider or the configuration only.
    let Ok(location) = HeaderValue::try_from(url) else {
        return respond_uncached(StatusCode::SERVICE_UNAVAILABLE);
    };
    let mut response = respond_uncached(StatusCode::FOUND);
    response.headers_mut().insert(LOCATION, location);
    response
}

/// A URL of this host, whatever the path looks like: `//b.test` and `/\b.test` alone would be other hosts.
pub(super) fn url_of_host(authority: &Authority, path: &str) -> String {
    let port = authority.port.filter(|port| *port != 443);
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    format!("https://{}{port}{path}", authority.host)
}

/// The URL of the provider may have a query already.
pub(super) fn with_query(url: &Uri, query: &str) -> String {
    match url.query() {
        Some("") => format!("{url}{query}"),
        Some(_) => format!("{url}&{query}"),
        None => format!("{url}?{query}"),
    }
}
