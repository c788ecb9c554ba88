//! TLS with endpoints.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use lb_connections::AnyCertificate;
use lb_http::upstream::{Authorities, UpstreamProtocol, UpstreamTls};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::certificate::revocation_lists;

/// How connections to the endpoints of an upstream are encrypted.
#[derive(Debug)]
pub(crate) struct EndpointTls {
    pub config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl EndpointTls {
    /// An error says what of the settings cannot be used. Then no connection is made: without TLS or verification,
    /// requests would reach an unintended server.
    pub fn new(protocol: UpstreamProtocol, tls: Option<&UpstreamTls>) -> Result<Self, String> {
        let default = UpstreamTls::default();
        let tls = tls.unwrap_or(&default);
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let roots = match &tls.authorities {
            Authorities::Any => None,
            Authorities::Public => Some(PUBLIC_ROOTS.clone()),
            Authorities::Pem(pem) => Some(Arc::new(parse_roots(pem)?)),
        };
        let builder = match roots {
            Some(roots) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
                let verifier = match &tls.revoked {
                    Some(pem) => verifier
                        .with_crls(revocation_lists(pem.as_bytes()).map_err(|e| e.to_string())?)
                        .enforce_revocation_expiration(),
                    None => verifier,
                };
                builder.with_webpki_verifier(verifier.build().map_err(|e| e.to_string())?)
            }
            // Without authorities, TLS protects from listeners only.
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        };
        let mut config = match &tls.client {
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| format!("client certificate: {e}"))?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                    .map_err(|e| format!("key of the client certificate: {e}"))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| e.to_string())?
            }
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = tls.server_name.is_some();
        config.alpn_protocols = match protocol {
            UpstreamProtocol::Grpcs => vec![b"h2".to_vec()],
            _ => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let name = tls.server_name.as_deref().map(|name| {
            ServerName::try_from(name.to_owned()).map_err(|e| format!("server name {name}: {e}"))
        });
        Ok(Self { config: Arc::new(config), name: name.transpose()? })
    }

    /// The name that is verified: the address, if there is no name.
    pub fn name(&self, address: IpAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| ServerName::IpAddress(address.into()))
    }
}

/// Parsed once for all upstreams.
static PUBLIC_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    Arc::new(roots)
});

fn parse_roots(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|e| format!("certificate authority: {e}"))?;
        roots.add(certificate).map_err(|e| format!("certificate authority: {e}"))?;
    }
    if roots.is_empty() {
        return Err("there is no certificate authority in PEM (BEGIN CERTIFICATE)".to_owned());
    }
    Ok(roots)
}
