//! Whether a connection may carry requests for a host: what TLS has proved must be what the host demands.

use http::StatusCode;

use super::reply::Reply;
use crate::config::{ClientCertificates, Config, HostTls};
use crate::tls::ClientTls;

/// What a host says about TLS.
pub(crate) struct HostFacts {
    /// It is served over TLS, or should be. The certificate for all other hosts does not count.
    pub uses_tls: bool,
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
        return Ok(HostFacts { uses_tls: false, is_verified: false, demands_certificate: false });
    }
    let own = config.own_tls(host);
    let uses_tls = own.as_ref().is_some_and(|(_, tls)| tls.is_wanted());
    let wanted = config.or_default(own).map(|(_, tls)| tls);
    let clients = wanted.and_then(|wanted| wanted.clients());
    if let Some(tls) = tls {
        let is_passed = wanted.is_some_and(|w| matches!(**w, HostTls::Passthrough(_)));
        if is_passed || !are_same(clients, tls.host.clients()) {
            return Err(Reply::new(StatusCode::MISDIRECTED_REQUEST, "misdirected"));
        }
    }
    let is_verified = tls.is_some_and(|tls| tls.is_verified);
    Ok(HostFacts {
        uses_tls,
        is_verified,
        demands_certificate: clients.is_some_and(|clients| !clients.optional) && !is_verified,
    })
}

fn are_same(one: Option<&ClientCertificates>, other: Option<&ClientCertificates>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other),
        _ => false,
    }
}
