//! TLS handshakes with clients. The first message of a client decides by its server name (SNI) which certificate it
//! gets, or whether the connection is forwarded as it is.
//!
//! Invariants:
//! - No certificate is sent for a name that is not configured: such a client gets the alert `unrecognized_name`.
//! - A host with client certificates resumes no session: a session that was made before the host's authorities changed
//!   must not outlive them.

use std::io::Cursor;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::server::{Acceptor, ClientHello, ProducesTickets, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::{HandshakeKind, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tickets::Tickets;
use super::{ClientTls, HttpVersion, distinguished_name};
use crate::config::{ClientCertificates, Config, HostTls, Passthrough};
use crate::io::Prefixed;
use crate::metrics::Handshake;
use crate::session_keys::SessionKeys;

/// What all handshakes have in common.
#[derive(Debug)]
pub(crate) struct Handshakes {
    provider: Arc<CryptoProvider>,
    /// For hosts without client certificates.
    plain: ServerConfig,
}

pub(crate) enum Accepted {
    Terminated {
        stream: Box<TlsStream<Prefixed>>,
        tls: ClientTls,
        protocol: HttpVersion,
    },
    Passthrough {
        host: Arc<Passthrough>,
        server_name: Option<Box<str>>,
        hello: Bytes,
        tcp: TcpStream,
    },
}

const CLIENT_VERIFY: HeaderName = HeaderName::from_static("ssl-client-verify");
const CLIENT_SUBJECT: HeaderName = HeaderName::from_static("ssl-client-subject-dn");
const CLIENT_ISSUER: HeaderName = HeaderName::from_static("ssl-client-issuer-dn");
const CLIENT_CERTIFICATE: HeaderName = HeaderName::from_static("ssl-client-cert");

/// Most octets of a client's first message: larger than any with post-quantum key shares and a session ticket.
const MOST_HELLO: usize = 16 << 10;

/// A fatal alert before any key is agreed: `unrecognized_name`.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

impl Handshakes {
    pub fn new(keys: SessionKeys) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let tickets = Tickets::new(keys).map_err(|e| e.to_string())?;
        let mut plain = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoKey));
        finish(&mut plain, Some(Arc::new(tickets)));
        Ok(Self { provider, plain })
    }

    /// Settings for one connection. Making them costs far less than a handshake, and nothing has to be found out
    /// when a certificate changes.
    fn config(&self, host: &HostTls) -> Option<ServerConfig> {
        let HostTls::Terminate { certificate, clients } = host else { return None };
        let key = Arc::new(OneKey(certificate.key.clone()));
        let Some(clients) = clients else {
            let mut config = self.plain.clone();
            config.cert_resolver = key;
            return Some(config);
        };
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let mut config = builder
            .with_safe_default_protocol_versions()
            .ok()?
            .with_client_cert_verifier(clients.verifier.clone())
            .with_cert_resolver(key);
        finish(&mut config, None);
        Some(config)
    }

    /// Reads a client's first message and completes the handshake, or hands the connection over for passthrough.
    pub async fn accept(
        &self,
        mut tcp: TcpStream,
        prefix: Bytes,
        config: &Config,
    ) -> Result<Accepted, Handshake> {
        let mut hello = BytesMut::from(prefix);
        let mut acceptor = Acceptor::default();
        let mut fed = 0;
        let accepted = loop {
            while fed < hello.len() {
                let mut rest = Cursor::new(&hello[fed..]);
                match acceptor.read_tls(&mut rest) {
                    Ok(0) | Err(_) => return Err(Handshake::Failed),
                    Ok(count) => fed += count,
                }
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => break accepted,
                Ok(None) => {}
                Err((_, mut alert)) => {
                    let mut text = Vec::new();
                    // Writing to memory does not fail; writing to a client may, and then it has gone.
                    let _ = alert.write_all(&mut text);
                    let _ = tcp.write_all(&text).await;
                    return Err(Handshake::Failed);
                }
            }
            if hello.len() >= MOST_HELLO {
                return Err(Handshake::Failed);
            }
            match tcp.read_buf(&mut hello).await {
                Ok(0) | Err(_) => return Err(Handshake::Failed),
                Ok(_) => {}
            }
        };
        let server_name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
        let Some((_, host)) = config.tls_of(server_name.as_deref()) else {
            let _ = tcp.write_all(&UNRECOGNIZED_NAME).await;
            return Err(Handshake::UnknownName);
        };
        let host = host.clone();
        let server_name = server_name.map(String::into_boxed_str);
        if let HostTls::Passthrough(host) = &*host {
            let (host, hello) = (host.clone(), hello.freeze());
            return Ok(Accepted::Passthrough { host, server_name, hello, tcp });
        }
        let config = self.config(&host).ok_or(Handshake::Failed)?;
        let stream = StartHandshake::from_parts(accepted, Prefixed::from(tcp))
            .into_stream(Arc::new(config))
            .await
            .map_err(|_| Handshake::Failed)?;
        let (_, connection) = stream.get_ref();
        let protocol = match connection.alpn_protocol() {
            Some(b"h2") => HttpVersion::Http2,
            _ => HttpVersion::Http1,
        };
        let tls = client_tls(host, connection);
        Ok(Accepted::Terminated { stream: Box::new(stream), tls, protocol })
    }
}

/// Which kind of handshake a connection had.
pub(crate) fn handshake_kind(stream: &TlsStream<Prefixed>) -> Handshake {
    match stream.get_ref().1.handshake_kind() {
        Some(HandshakeKind::Resumed) => Handshake::Resumed,
        _ => Handshake::Full,
    }
}

fn finish(config: &mut ServerConfig, ticketer: Option<Arc<dyn ProducesTickets>>) {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Sessions are in tickets, which take no memory here and work in all workers.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    match ticketer {
        Some(ticketer) => config.ticketer = ticketer,
        None => config.send_tls13_tickets = 0,
    }
}

fn client_tls(host: Arc<HostTls>, connection: &ServerConnection) -> ClientTls {
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let described = host.clients().map(|clients| describe(clients, certificate));
    ClientTls { is_verified: certificate.is_some(), described: described.unwrap_or_default(), host }
}

/// Headers with the names and values of ingress-nginx. A certificate that is there was verified.
fn describe(
    clients: &ClientCertificates,
    certificate: Option<&CertificateDer<'_>>,
) -> Vec<(HeaderName, HeaderValue)> {
    let Some(certificate) = certificate else {
        return vec![(CLIENT_VERIFY, HeaderValue::from_static("NONE"))];
    };
    let mut headers = vec![(CLIENT_VERIFY, HeaderValue::from_static("SUCCESS"))];
    if let Ok((_, parsed)) = X509Certificate::from_der(certificate) {
        let names = [(CLIENT_SUBJECT, parsed.subject()), (CLIENT_ISSUER, parsed.issuer())];
        headers.extend(names.into_iter().filter_map(|(header, name)| {
            Some((
                header,
                HeaderValue::try_from(distinguished_name::format_distinguished_name(name)).ok()?,
            ))
        }));
    }
    if clients.pass_to_endpoint {
        headers.extend(encode(certificate).map(|pem| (CLIENT_CERTIFICATE, pem)));
    }
    headers
}

/// PEM with all but letters and digits percent-encoded, as ingress-nginx passes certificates on.
fn encode(certificate: &CertificateDer<'_>) -> Option<HeaderValue> {
    let mut text = String::from("-----BEGIN%20CERTIFICATE-----%0A");
    let encoded = STANDARD.encode(certificate);
    for (number, c) in encoded.chars().enumerate() {
        if number > 0 && number % 64 == 0 {
            text.push_str("%0A");
        }
        match c {
            '+' => text.push_str("%2B"),
            '/' => text.push_str("%2F"),
            '=' => text.push_str("%3D"),
            c => text.push(c),
        }
    }
    text.push_str("%0A-----END%20CERTIFICATE-----%0A");
    HeaderValue::try_from(text).ok()
}

#[derive(Debug)]
struct OneKey(Arc<CertifiedKey>);

impl ResolvesServerCert for OneKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Replaced for each connection.
#[derive(Debug)]
struct NoKey;

impl ResolvesServerCert for NoKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}
