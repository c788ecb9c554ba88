//! Groups of endpoints that requests are forwarded to.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::Arc;

/// One port of one Service, as seen through one set of connection settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamName {
    pub namespace: Arc<str>,
    pub service: Arc<str>,
    /// The port's name or number as the route has it.
    pub port: Arc<str>,
    pub protocol: UpstreamProtocol,
    /// Of [`UpstreamProtocol::Https`] and [`UpstreamProtocol::Grpcs`]: how the endpoint proves who it is.
    pub tls: Option<UpstreamTls>,
}

impl Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.service, self.port)
    }
}

/// What the endpoints speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UpstreamProtocol {
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
    /// HTTP/2 or HTTP/1.1 over TLS, by ALPN.
    Https,
    /// HTTP/2 over TLS.
    Grpcs,
}

impl UpstreamProtocol {
    pub fn uses_tls(self) -> bool {
        matches!(self, Self::Https | Self::Grpcs)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamTls {
    /// Name that is sent as SNI and verified. Without it, none is sent.
    pub server_name: Option<Arc<str>>,
    pub authorities: Authorities,
    /// Revocation lists of the authorities in PEM.
    pub revoked: Option<Arc<str>>,
    /// Client certificate and private key in PEM.
    pub client: Option<(Arc<str>, Arc<str>)>,
}

/// By whom an endpoint's certificate must be signed.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Authorities {
    /// The certificate is not verified.
    #[default]
    Any,
    /// The authorities that browsers trust.
    Public,
    /// These, in PEM.
    Pem(Arc<str>),
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "Any",
            Self::Public => "Public",
            Self::Pem(_) => "Pem",
        })
    }
}

/// The endpoints of an upstream at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Endpoints for new requests, in the order of their addresses.
    pub endpoints: Vec<UpstreamEndpoint>,
    /// Endpoints that finish their requests, and get new ones only by affinity to them.
    pub draining: Vec<UpstreamEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpstreamEndpoint {
    pub address: SocketAddr,
    /// On the proxy's node.
    pub is_local: bool,
}
