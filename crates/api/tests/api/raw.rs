//! Connections without an HTTP client, for clients that misbehave.

use std::io;
use std::sync::Arc;

use lb_api::http::{CertificateAuthority, ClientIdentity, ClientRole};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::server::{Location, TestServer};

/// A connection of this user, who may do everything and speaks HTTP/1.1.
pub async fn connect(server: &TestServer, user: &str) -> TlsStream<TcpStream> {
    try_connect(&server.location(), user).await.unwrap()
}

/// Connects as [`connect`]; the server may refuse the connection.
pub async fn try_connect(server: &Location, user: &str) -> io::Result<TlsStream<TcpStream>> {
    connect_with(server, certified(server, user)).await
}

/// The configuration of a user with a new certificate. Each connection makes a full handshake.
pub fn certified(server: &Location, user: &str) -> Arc<ClientConfig> {
    let authority = CertificateAuthority::open(&server.directory.join("pki")).unwrap();
    let client =
        authority.client(&ClientIdentity::new(user, ClientRole::Administrator), 1).unwrap();
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.certificate().as_bytes());
    roots.add(certificate.unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap(),
        )
        .unwrap();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

pub async fn connect_with(
    server: &Location,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, stream).await
}

/// Sends one request on a connection of its own. Returns the status and the body.
pub async fn send(
    server: &TestServer,
    request: &str,
    content_type: &str,
    body: &[u8],
) -> (u16, String) {
    let location = server.location();
    try_send(&location, certified(&location, "raw"), request, content_type, body).await.unwrap()
}

/// Sends a request as [`send`]; the server may refuse the connection.
pub async fn try_send(
    server: &Location,
    config: Arc<ClientConfig>,
    request: &str,
    content_type: &str,
    body: &[u8],
) -> io::Result<(u16, String)> {
    let mut stream = connect_with(server, config).await?;
    let head = format!(
        "{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    // The server may refuse before it has read everything.
    let _ = stream.write_all(body).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    let response = String::from_utf8_lossy(&response).into_owned();
    let status = response.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
    let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((status, body.unwrap_or_default()))
}
