//! A TLS client that measures handshakes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Result, ensure};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme,
    StreamOwned,
};
use tests::load::is_ok;

use super::proxy::HOST;

/// Opens connections, and sends one request over each.
pub struct Client(Arc<ClientConfig>);

impl Client {
    pub fn new(resumes: bool) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        config.resumption =
            if resumes { Resumption::in_memory_sessions(256) } else { Resumption::disabled() };
        Ok(Self(Arc::new(config)))
    }

    /// Sends a request over a new connection. Returns whether the session was resumed.
    pub fn request(&self, connection: TcpStream) -> Result<bool> {
        let session = ClientConnection::new(Arc::clone(&self.0), ServerName::try_from(HOST)?)?;
        let mut stream = StreamOwned::new(session, connection);
        write!(stream, "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n")?;
        let mut response = Vec::new();
        // Not all proxies end the TLS session before they close the connection.
        let _ = stream.read_to_end(&mut response);
        ensure!(is_ok(&response), "the proxy sent {:?}", String::from_utf8_lossy(&response));
        Ok(stream.conn.handshake_kind() == Some(HandshakeKind::Resumed))
    }
}

/// The certificate is self-signed; its verification is the client's work and not measured.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
