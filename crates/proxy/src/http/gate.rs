//! Whether a connection may carry requests for a host: what TLS has proved must be what the host demands.

use lb_http::Rejection;
use lb_http::admission::ClientCertificate;

use crate::config::{ClientCertificates, Config, HostTls};
use crate::tls::ClientTls;

/// What a host says about TLS.
#[derive(Default)]
pub(crate) struct HostTlsFacts {
    /// The host is served over TLS, or should be. The certificate for all other hosts does not count.
    pub is_used: bool,
    pub certificate: ClientCertificate,
}

/// Refuses requests on connections whose handshake was made under other rules: the client has to make a new
/// connection. Also after the rules have changed.
pub(crate) fn check_connection(
    config: &Config,
    host: Option<&str>,
    tls: Option<&ClientTls>,
) -> Result<HostTlsFacts, Rejection> {
    if config.tls.is_empty() && tls.is_none() {
        return Ok(HostTlsFacts::default());
    }
    let own = config.own_tls(host);
    let is_used = own.as_ref().is_some_and(|(_, tls)| tls.is_wanted());
    let wanted = config.or_default(own).map(|(_, tls)| tls);
    let clients = wanted.and_then(|wanted| wanted.clients());
    if let Some(tls) = tls {
        let is_passed = wanted.is_some_and(|w| matches!(**w, HostTls::Passthrough(_)));
        if is_passed || !are_same(clients, tls.host.clients()) {
            return Err(Rejection::MisdirectedConnection);
        }
    }
    let certificate = ClientCertificate {
        is_verified: tls.is_some_and(|tls| tls.is_verified),
        is_demanded: clients.is_some_and(|clients| !clients.optional),
    };
    Ok(HostTlsFacts { is_used, certificate })
}

fn are_same(one: Option<&ClientCertificates>, other: Option<&ClientCertificates>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other),
        _ => false,
    }
}
