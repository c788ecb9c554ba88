//! Certificates of hosts.

use std::fmt::{self, Display};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A certificate chain and its private key, which belong together.
#[derive(Debug)]
pub struct Certificate {
    pub key: Arc<CertifiedKey>,
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
    /// DNS names that the certificate is for, in lower case. They may begin with `*.`.
    pub names: Vec<String>,
}

/// Why a chain and a key cannot be used. The message names neither, as the caller knows the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCertificate(String);

impl Display for InvalidCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCertificate {}

impl Certificate {
    /// Reads a chain, leaf first, and a private key in PEM (PKCS#8, PKCS#1 or SEC1), and verifies that they belong
    /// together. An expired certificate is not an error: `not_after` tells.
    pub fn parse(chain: &[u8], key: &[u8]) -> Result<Self, InvalidCertificate> {
        let invalid = |text: String| InvalidCertificate(text);
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| invalid(format!("the certificate is not valid PEM: {e}")))?;
        let leaf = chain.first().ok_or_else(|| {
            invalid("there is no certificate in PEM (BEGIN CERTIFICATE)".to_owned())
        })?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|e| invalid(format!("the first certificate is not valid X.509: {e}")))?;
        let validity = parsed.validity();
        let (not_before, not_after) =
            (validity.not_before.timestamp(), validity.not_after.timestamp());
        let names = names(&parsed);
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|e| invalid(format!("the private key is not valid PEM: {e}")))?;
        let key = ring::sign::any_supported_type(&key)
            .map_err(|e| invalid(format!("the private key cannot be used: {e}")))?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) => {}
            // A key that does not reveal its public half cannot be compared. Those of ring do.
            Err(e) => {
                return Err(invalid(format!(
                    "the private key does not belong to the first certificate: {e}"
                )));
            }
        }
        Ok(Self { key: Arc::new(key), not_before, not_after, names })
    }

    /// Whether the certificate is for this host, which is in lower case.
    pub fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(suffix) => host.split_once('.').is_some_and(|(_, rest)| rest == suffix),
            None => name == host,
        })
    }
}

/// Certificate revocation lists in PEM.
pub(crate) fn revocation_lists(
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, InvalidCertificate> {
    let lists = CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|e| {
        InvalidCertificate(format!("the certificate revocation list is not valid PEM: {e}"))
    })?;
    if lists.is_empty() {
        let why = "there is no certificate revocation list in PEM (BEGIN X509 CRL)";
        return Err(InvalidCertificate(why.to_owned()));
    }
    Ok(lists)
}

/// Verifies the certificates of a host's clients. With revocation lists, each certificate of a chain needs one that is
/// not expired, as with OpenSSL.
pub(crate) fn client_verifier(
    authorities: &[u8],
    revoked: Option<&[u8]>,
    optional: bool,
) -> Result<Arc<dyn ClientCertVerifier>, InvalidCertificate> {
    let invalid = |text: String| InvalidCertificate(text);
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        let authority = authority
            .map_err(|e| invalid(format!("the certificate authorities are not valid PEM: {e}")))?;
        roots
            .add(authority)
            .map_err(|e| invalid(format!("a certificate authority is not valid X.509: {e}")))?;
    }
    let provider = Arc::new(ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    let builder = match revoked {
        Some(pem) => builder.with_crls(revocation_lists(pem)?).enforce_revocation_expiration(),
        None => builder,
    };
    let verifier = builder
        .build()
        .map_err(|e| invalid(format!("the certificate authorities cannot be used: {e}")))?;
    Ok(verifier)
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        (pair.cert.pem(), pair.signing_key.serialize_pem())
    }

    #[test]
    fn a_pair_is_read_with_names_and_expiry() {
        let (chain, key) = pair(&["WWW.example.org", "*.shop.example.org"]);
        let certificate = Certificate::parse(chain.as_bytes(), key.as_bytes()).unwrap();
        assert!(certificate.not_before < certificate.not_after);
        assert!(certificate.covers("www.example.org"));
        assert!(certificate.covers("a.shop.example.org"));
        assert!(!certificate.covers("a.b.shop.example.org"));
        assert!(!certificate.covers("shop.example.org"));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (chain, _) = pair(&["a.example.org"]);
        let (_, key) = pair(&["a.example.org"]);
        let error = Certificate::parse(chain.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("does not belong"), "{error}");
    }

    #[test]
    fn what_is_not_pem_is_refused_by_name() {
        let (chain, key) = pair(&["a.example.org"]);
        let error = |chain: &str, key: &str| {
            Certificate::parse(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string()
        };
        assert!(error("", &key).contains("no certificate"));
        assert!(error(&chain, "").contains("private key"));
        assert!(error(&chain, &chain).contains("private key"));
        let broken = chain.replacen('M', "A", 1);
        assert!(!error(&broken, &key).is_empty());
    }
}
