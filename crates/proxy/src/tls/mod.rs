//! TLS with clients (`server`) and with endpoints (`client`).

pub(crate) mod client;
mod distinguished_name;
pub(crate) mod server;
mod tickets;

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use crate::config::HostTls;

/// What TLS says about a client.
pub(crate) struct ClientTls {
    /// The settings that the handshake was made with.
    pub host: Arc<HostTls>,
    /// The client's certificate was verified.
    pub is_verified: bool,
    /// Headers about the client's certificate, for the endpoint.
    pub described: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
}
