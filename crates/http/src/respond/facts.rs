//! What responses depend on.

use std::net::IpAddr;

use http::{HeaderMap, Method, Response, StatusCode};

use crate::host::Authority;

/// What is known about a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub client: IpAddr,
    /// Whether the client uses TLS, to this proxy or to a trusted one.
    pub is_tls: bool,
    /// Whether the host is served over TLS, or should be.
    pub host_uses_tls: bool,
    /// The port of TLS, as clients see it.
    pub tls_port: u16,
    pub method: &'a Method,
    /// As [`Target`](crate::request::Target) has them.
    pub authority: Option<&'a Authority<'a>>,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

/// A response without headers.
pub(crate) fn empty_response(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}
