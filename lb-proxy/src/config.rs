//! All that the proxy needs to serve requests.

use std::collections::HashMap;
use std::sync::Arc;

use lb_http::{HostPattern, Table, Upstream, UpstreamName};
use rustls::RootCertStore;

pub use crate::certificate::Certificate;

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
    Passthrough(UpstreamName),
}

/// Certificates that a host's clients present.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    pub authorities: Arc<RootCertStore>,
    /// Whether clients without a certificate are served.
    pub optional: bool,
    /// Whether the endpoint gets the certificate in the header `ssl-client-cert`.
    pub pass_to_endpoint: bool,
}
