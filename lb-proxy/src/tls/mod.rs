//! TLS with clients (`server`) and with endpoints (`client`).

pub(crate) mod client;
pub(crate) mod server;

use lb_http::HostPattern;
use lb_http::host::parent;
use std::sync::Arc;

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
