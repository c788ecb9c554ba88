//! Whether a connection may carry requests for a host: what TLS has proved must be what the host demands.

use std::sync::Arc;

use http::StatusCode;
use lb_http::HostPattern;

use super::reply::Reply;
use crate::config::{ClientCertificates, Config, HostTls};
use crate::tls::{ClientTls, host_tls};

/// What a host says about TLS.
pub(crate) struct HostFacts {
    /// One of its own, and not that for all other hosts.
    pub has_certificate: bool,
    /// The client has a certificate that the host's authorities verify.
    pub is_verified: bool,
    /// A client without a verified certificate is refused.
    pub demands_certificate: bool,
}

/// Refuses requests on connections whose handshake was made under other rules: the client has to make a new
/// connection. Also after the rules have changed.
pub(crate) fn check(
    config: &Config,
    host: Option<&str>,
    tls: Option<&ClientTls>,
) -> Result<HostFacts, Reply> {
    if config.tls.is_empty() && tls.is_none() {
        return Ok(HostFacts {
            has_certificate: false,
            is_verified: false,
            demands_certificate: false,
        });
    }
    let wanted = host_tls(config, host);
    let clients = wanted.and_then(|wanted| match &**wanted {
        HostTls::Terminate { clients, .. } => clients.as_ref(),
        HostTls::Passthrough { .. } => None,
    });
    if let Some(tls) = tls {
        let is_passed = wanted.is_some_and(|w| matches!(**w, HostTls::Passthrough { .. }));
        let used = match &*tls.host {
            HostTls::Terminate { clients, .. } => clients.as_ref(),
            HostTls::Passthrough { .. } => None,
        };
        if is_passed || !are_same(clients, used) {
            return Err(Reply::new(StatusCode::MISDIRECTED_REQUEST, "misdirected"));
        }
    }
    let is_verified = tls.is_some_and(|tls| tls.is_verified);
    let default = config.tls.get(&HostPattern::Any);
    let is_default = |tls: &Arc<HostTls>| default.is_some_and(|other| Arc::ptr_eq(other, tls));
    Ok(HostFacts {
        has_certificate: wanted.is_some_and(|tls| !is_default(tls)),
        is_verified,
        demands_certificate: clients.is_some_and(|clients| !clients.optional) && !is_verified,
    })
}

fn are_same(one: Option<&ClientCertificates>, other: Option<&ClientCertificates>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.admits_same(other),
        _ => false,
    }
}
