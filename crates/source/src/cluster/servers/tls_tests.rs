//! Whole requests over TLS: who gets one, and with which certificates after files were replaced.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use lb_process::ClientRequests;
use rcgen::{CertifiedKey, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::cluster::{Access, Connection};

const SOON: Duration = Duration::from_secs(50);
const TOKEN: &str = "the-token-of-the-agent";

type Identity = CertifiedKey<KeyPair>;

fn identity() -> Identity {
    rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap()
}

/// What a server has seen of a connection.
#[derive(Debug, PartialEq)]
enum Seen {
    HandshakeFailed,
    /// The request, and the client's certificate.
    Request(String, Option<CertificateDer<'static>>),
}

/// A server that has an identity and accepts those of some clients.
struct Server {
    address: SocketAddr,
    seen: UnboundedReceiver<Seen>,
    /// Dropped with the server, and all connections with it.
    serving: JoinSet<()>,
}

impl Server {
    async fn start(bind: SocketAddr, own: &Identity, clients: &[&Identity]) -> Self {
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = if clients.is_empty() {
            config.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for client in clients {
                roots.add(client.cert.der().clone()).unwrap();
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            config.with_client_cert_verifier(verifier.build().unwrap())
        };
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = config.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(bind).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = unbounded_channel();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(acceptor.clone(), stream, sender.clone()));
            }
        });
        Self { address, seen, serving }
    }

    async fn stop(mut self) {
        self.serving.shutdown().await;
    }

    async fn next(&mut self) -> Seen {
        timeout(SOON, self.seen.recv()).await.unwrap().unwrap()
    }
}

/// Answers every request with an empty object, on one connection.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, seen: UnboundedSender<Seen>) {
    let Ok(mut stream) = acceptor.accept(stream).await else {
        let _ = seen.send(Seen::HandshakeFailed);
        return;
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|all| Some(all.first()?.clone().into_owned()));
    let mut request = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        request.push(byte);
        if request.ends_with(b"\r\n\r\n") {
            let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
            let _ = seen.send(Seen::Request(text, certificate.clone()));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        }
    }
    // What came without a whole request was sent all the same.
    if !request.is_empty() {
        let text = String::from_utf8_lossy(&request).into_owned();
        let _ = seen.send(Seen::Request(text, certificate));
    }
}

/// The files of a configuration.
struct Files(TempDir);

impl Files {
    fn new(server: SocketAddr, ca: &Identity, user: Value) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let cluster = json!({
            "server": format!("https://{server}"), "certificate-authority": files.at("ca")
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}]
        });
        files.write("kubeconfig", &kubeconfig.to_string());
        files.write("ca", &ca.cert.pem());
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.at(name), contents).unwrap();
    }

    async fn open(&self) -> Connection {
        let access = Access { kubeconfig: Some(self.at("kubeconfig")), ..Access::default() };
        access.open(&ClientRequests::default()).await.unwrap()
    }
}

async fn request(connection: &Connection) -> Result<(), String> {
    let request = Request::get("/version").body(Vec::new()).unwrap();
    let response = connection.client.request_text(request).await;
    response.map(drop).map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn has_token(seen: &Seen) -> bool {
    matches!(seen, Seen::Request(text, _) if text.contains(&format!("Bearer {TOKEN}")))
}

#[tokio::test]
async fn a_server_with_another_certificate_at_a_learned_address_gets_no_token() {
    let (genuine, other) = (identity(), identity());
    let mut fake = Server::start(anywhere(), &other, &[]).await;
    // Not a port that the kernel chooses, which another test may get.
    let down = "127.0.0.1:9".parse().unwrap();
    let connection = Files::new(down, &genuine, json!({"token": TOKEN}));
    let connection = connection.open().await;
    let servers = connection.transport.servers();
    servers.state().learned.insert(fake.address);
    let error = request(&connection).await.unwrap_err();
    assert!(error.contains(&fake.address.to_string()), "{error}");
    assert_eq!(fake.next().await, Seen::HandshakeFailed);

    let mut learned = Server::start(anywhere(), &genuine, &[]).await;
    servers.state().learned.insert(learned.address);
    request(&connection).await.unwrap();
    assert!(has_token(&learned.next().await));
    // It was tried again, or not.
    while let Ok(seen) = fake.seen.try_recv() {
        assert_eq!(seen, Seen::HandshakeFailed);
    }
}

#[tokio::test]
async fn a_ca_that_is_replaced_is_used_at_once() {
    let (first, second) = (identity(), identity());
    let server = Server::start(anywhere(), &first, &[]).await;
    let address = server.address;
    let files = Files::new(address, &first, json!({"token": TOKEN}));
    let connection = files.open().await;
    request(&connection).await.unwrap();

    server.stop().await;
    let mut server = Server::start(address, &second, &[]).await;
    let error = request(&connection).await.unwrap_err();
    assert!(error.contains("certificate") || error.contains("closed"), "{error}");
    let used = connection.transport.used();
    files.write("ca", &second.cert.pem());
    timeout(SOON, connection.transport.replaced(used)).await.unwrap();
    request(&connection).await.unwrap();
    while !has_token(&server.next().await) {}
    // What is no certificate is ignored.
    files.write("ca", "no certificate");
    request(&connection).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_that_is_replaced_is_used_on_a_new_connection() {
    let (own, first, second) = (identity(), identity(), identity());
    let mut server = Server::start(anywhere(), &own, &[&first, &second]).await;
    let user = json!({"client-certificate": "certificate", "client-key": "key"});
    let files = Files::new(server.address, &own, user);
    files.write("certificate", &first.cert.pem());
    files.write("key", &first.signing_key.serialize_pem());
    let connection = files.open().await;
    let certificate = async |server: &mut Server| match server.next().await {
        Seen::Request(_, certificate) => certificate.unwrap(),
        seen @ Seen::HandshakeFailed => panic!("{seen:?}"),
    };
    for _ in 0..2 {
        request(&connection).await.unwrap();
        assert_eq!(certificate(&mut server).await, *first.cert.der());
    }
    // Between the two writes certificate and key do not fit: the old ones remain.
    files.write("certificate", &second.cert.pem());
    request(&connection).await.unwrap();
    assert_eq!(certificate(&mut server).await, *first.cert.der());
    files.write("key", &second.signing_key.serialize_pem());
    request(&connection).await.unwrap();
    assert_eq!(certificate(&mut server).await, *second.cert.der());
}
