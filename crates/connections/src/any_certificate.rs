//! TLS to servers whose certificates are not known beforehand.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Accepts any certificate, of which the server must have the key. Protects from listeners, not from a server that
/// poses as another one.
#[derive(Debug)]
pub struct AnyCertificate(pub Arc<CryptoProvider>);

impl AnyCertificate {
    /// Takes nothing but the key from the certificate: rustls's own verification refuses those of X.509 version 1,
    /// which `openssl x509 -req` makes by default.
    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let (_, certificate) = X509Certificate::from_der(certificate)
            .map_err(|_| Error::from(CertificateError::BadEncoding))?;
        let key = &*certificate.public_key().subject_public_key.data;
        let schemes = self.0.signature_verification_algorithms.mapping.iter();
        let mut algorithms = schemes
            .filter(|(scheme, _)| *scheme == signature.scheme)
            .flat_map(|(_, algorithms)| *algorithms);
        if algorithms.any(|it| it.verify_signature(key, message, signature.signature()).is_ok()) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};
    use rustls::{
        ClientConfig, ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion,
    };

    use super::*;

    /// Of X.509 version 1, as `openssl x509 -req` of OpenSSL 3.0 makes them.
    const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBGDCBvwIUITe0oO2aMURcyMWvnVsX0juOE/4wCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTEyNzIzMzAxOVoYDzIxMjYxMTAzMjMzMDE5WjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARCnrN6cjPj31s7
jt0Wc7pf3FF71+WgK8WWTVjETWeKlRuPUruKU0/HvMT/Z0n59tf8fTvIO8c5ZnmT
DckK7iGfMAoGCCqGSM49BAMCA0gAMEUCIAx1KBQBYUUIel6S1jF4JixJ4dJQTnZl
vPQKaPOBMELKAiEAl6qZ832TDsd7xZQtL/icMQrUsf1o1ujGyP6xTip6/CQ=
-----END CERTIFICATE-----
";
    const KEY_OF_VERSION_1: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgfSYZOpQURnne2cx/
TujRJ+tDTIkpezvGVMWuG4fj2cShRANCAARCnrN6cjPj31s7jt0Wc7pf3FF71+Wg
K8WWTVjETWeKlRuPUruKU0/HvMT/Z0n59tf8fTvIO8c5ZnmTDckK7iGf
-----END PRIVATE KEY-----
";

    #[derive(Debug)]
    struct Always(Arc<CertifiedKey>);

    impl ResolvesServerCert for Always {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
    }

    /// A handshake in memory with a server that presents a certificate and signs with a key.
    fn connect(
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'_>,
        version: &'static SupportedProtocolVersion,
    ) -> Result<(), Error> {
        let provider = Arc::new(ring::default_provider());
        let key = ring::sign::any_supported_type(key)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate.clone()], key));
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Always(certified)));
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let mut server = ServerConnection::new(Arc::new(server))?;
        let name = ServerName::try_from("unknown.example").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        while client.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut sent.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            client.read_tls(&mut sent.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    fn certificate(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn key(pem: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    #[test]
    fn any_certificate_will_do_but_the_server_must_have_its_key() {
        let own = rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
        let (unknown, its_key) = (own.cert.der().clone(), own.signing_key.serialize_pem());
        let (old, old_key) = (certificate(VERSION_1), key(KEY_OF_VERSION_1));
        for version in [&TLS12, &TLS13] {
            connect(&unknown, &key(&its_key), version).unwrap();
            connect(&old, &old_key, version).unwrap();
            let stolen = connect(&unknown, &old_key, version).unwrap_err();
            assert!(matches!(stolen, Error::InvalidCertificate(_)), "{stolen}");
        }
    }
}
