//! All that the proxy needs to serve requests.

use std::collections::HashMap;
use std::sync::Arc;

pub use lb_http::proxy_protocol::Version as ProxyProtocol;
use lb_http::{HostPattern, Table, Upstream, UpstreamName};
use rustls::server::danger::ClientCertVerifier;

use crate::certificate;
pub use crate::certificate::{Certificate, InvalidCertificate};

/// A snapshot. Parts that did not change are shared with the snapshot before.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub table: Table,
    pub upstreams: HashMap<UpstreamName, Arc<Upstream>>,
    /// Hosts that are served over TLS. A client whose SNI matches none is refused, unless there is an entry for
    /// [`HostPattern::Any`].
    pub tls: HashMap<HostPattern, Arc<HostTls>>,
}

/// How TLS connections to a host are served.
#[derive(Clone, Debug)]
pub enum HostTls {
    Terminate {
        certificate: Arc<Certificate>,
        clients: Option<ClientCertificates>,
    },
    /// The endpoint terminates TLS: connections are forwarded by their SNI.
    Passthrough {
        upstream: UpstreamName,
        /// Whether connections to the endpoint begin with the PROXY protocol.
        proxy_protocol: Option<ProxyProtocol>,
    },
}

/// Certificates that a host's clients present.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// Whether clients without a certificate are served.
    pub optional: bool,
    /// Whether the endpoint gets the certificate in the header `ssl-client-cert`.
    pub pass_to_endpoint: bool,
}

impl ClientCertificates {
    /// `authorities`: certificates in PEM that clients' certificates must be signed by.
    pub fn parse(
        authorities: &[u8],
        optional: bool,
        pass_to_endpoint: bool,
    ) -> Result<Self, InvalidCertificate> {
        let verifier = certificate::client_verifier(authorities, optional)?;
        Ok(Self { verifier, optional, pass_to_endpoint })
    }

    /// Whether both come from the same authorities, parsed once, and admit the same clients.
    pub fn admits_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.verifier, &other.verifier) && self.optional == other.optional
    }
}
