//! All that the proxy needs to serve requests.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use lb_http::host::parent_domain;
use lb_http::policy::RateLimits;
pub use lb_http::proxy_protocol::Version as ProxyProtocol;
use lb_http::{HostPattern, IngressTable, RouteOwner, Upstream, UpstreamName};
use rustls::server::danger::ClientCertVerifier;

use crate::certificate;
pub use crate::certificate::{Certificate, InvalidCertificate};

/// A snapshot. Parts that did not change are shared with the snapshot before.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub table: IngressTable,
    pub upstreams: HashMap<UpstreamName, Arc<Upstream>>,
    /// Hosts that are served over TLS. A client whose SNI matches none is refused, unless there is an entry for
    /// [`HostPattern::Any`].
    pub tls: HashMap<HostPattern, Arc<HostTls>>,
}

impl Config {
    /// How connections to a host are served, and the pattern that says so. `None` for the host stands for a client that
    /// sent no name.
    pub fn tls_of(&self, host: Option<&str>) -> Option<(HostPattern, &Arc<HostTls>)> {
        self.or_default(self.own_tls(host))
    }

    /// The certificate for all other hosts serves those without one.
    pub(crate) fn or_default<'c>(
        &'c self,
        own: Option<(HostPattern, &'c Arc<HostTls>)>,
    ) -> Option<(HostPattern, &'c Arc<HostTls>)> {
        let own = own.filter(|(_, tls)| !matches!(***tls, HostTls::WithoutCertificate { .. }));
        own.or_else(|| Some((HostPattern::Any, self.tls.get(&HostPattern::Any)?)))
    }

    /// What is said about a host and not about all others: the most specific pattern decides.
    pub fn own_tls(&self, host: Option<&str>) -> Option<(HostPattern, &Arc<HostTls>)> {
        let host = host?;
        let exact = Some(HostPattern::Exact(host.into()));
        let wildcard = || parent_domain(host).map(|suffix| HostPattern::Wildcard(suffix.into()));
        let find = |pattern: HostPattern| self.tls.get(&pattern).map(|tls| (pattern, tls));
        exact.and_then(find).or_else(|| wildcard().and_then(find))
    }
}

/// How TLS connections to a host are served.
#[derive(Clone, Debug)]
pub enum HostTls {
    Terminate {
        certificate: Arc<Certificate>,
        clients: Option<ClientCertificates>,
    },
    /// The endpoint terminates TLS: connections are forwarded by their SNI.
    Passthrough(Arc<Passthrough>),
    /// The host has no certificate, and that of a wildcard above it is not for it: TLS is as for unknown names.
    WithoutCertificate {
        /// Its owner wants TLS, so that requests without it are redirected although TLS does not work.
        is_wanted: bool,
    },
}

impl HostTls {
    /// Whether the host is served over TLS, or should be.
    pub fn is_wanted(&self) -> bool {
        match self {
            Self::Terminate { .. } | Self::Passthrough(_) => true,
            Self::WithoutCertificate { is_wanted } => *is_wanted,
        }
    }

    /// The certificates that clients present.
    pub(crate) fn clients(&self) -> Option<&ClientCertificates> {
        match self {
            Self::Terminate { clients, .. } => clients.as_ref(),
            Self::Passthrough(_) | Self::WithoutCertificate { .. } => None,
        }
    }
}

/// Where connections are forwarded to by their SNI, and who may connect: the proxy sees no requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    pub upstream: UpstreamName,
    /// Whether connections to the endpoint begin with the PROXY protocol.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whose connections the limits count.
    pub owner: RouteOwner,
    /// Clients that may connect; empty: all.
    pub allowed_sources: Vec<IpNet>,
    pub denied_sources: Vec<IpNet>,
    /// Of connections, each of which counts as one request.
    pub limits: RateLimits,
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
    /// `authorities`: certificates in PEM that clients' certificates must be signed by. `revoked`: their revocation
    /// lists in PEM.
    pub fn parse(
        authorities: &[u8],
        revoked: Option<&[u8]>,
        optional: bool,
        pass_to_endpoint: bool,
    ) -> Result<Self, InvalidCertificate> {
        let verifier = certificate::client_verifier(authorities, revoked, optional)?;
        Ok(Self { verifier, optional, pass_to_endpoint })
    }

    /// Whether both come from the same authorities, parsed once, admit the same clients, and tell endpoints the same
    /// about them. A connection that was made for one host serves another one only then.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.verifier, &other.verifier)
            && self.optional == other.optional
            && self.pass_to_endpoint == other.pass_to_endpoint
    }
}
