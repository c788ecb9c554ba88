//! A TLS client that measures handshakes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use crate::load::is_ok;
use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use super::proxy::HOST;

/// Opens connections, and sends one request over each.
pub struct HandshakeClient(Arc<ClientConfig>);

impl HandshakeClient {
    /// Trusts this certificate only.
    pub fn new(certificate: &Path, resumes: bool) -> Result<Self> {
        let read = CertificateDer::from_pem_file(certificate);
        let mut roots = RootCertStore::empty();
        roots.add(read.with_context(|| certificate.display().to_string())?)?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
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
