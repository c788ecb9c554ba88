//! TLS with clients (`server`) and with endpoints (`client`).

pub(crate) mod client;
pub(crate) mod server;
mod tickets;

use std::sync::Arc;

use http::HeaderValue;
use lb_http::HostPattern;
use lb_http::host::parent;

use crate::config::{Config, HostTls};

/// How connections to a host are served: the most specific pattern decides. `None` for the host stands for a client
/// that sent no name.
pub(crate) fn host_tls<'c>(config: &'c Config, host: Option<&str>) -> Option<&'c Arc<HostTls>> {
    let Some(host) = host else { return config.tls.get(&HostPattern::Any) };
    config
        .tls
        .get(&HostPattern::Exact(host.into()))
        .or_else(|| config.tls.get(&HostPattern::Wildcard(parent(host)?.into())))
        .or_else(|| config.tls.get(&HostPattern::Any))
}

/// What TLS says about a client.
pub(crate) struct ClientTls {
    /// The settings that the handshake was made with.
    pub host: Arc<HostTls>,
    /// The client's certificate was verified.
    pub is_verified: bool,
    /// The certificate in PEM, percent-encoded, for the endpoint.
    pub certificate: Option<HeaderValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}
