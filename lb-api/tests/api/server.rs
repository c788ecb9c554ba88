//! A server for one test.

use std::sync::Arc;

use lb_api::http::{Authority, Identity, Limits};
use lb_api::kinds::Ranges;
use lb_api::server::{Options, Server};
use lb_api::storage::Window;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub struct TestServer {
    pub server: Server,
    pub directory: TempDir,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_with(Window::default(), Limits::default()).await
    }

    pub async fn start_with(window: Window, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(Options {
            data_directory: directory.path().to_owned(),
            bind: "127.0.0.1:0".parse().unwrap(),
            kubeconfig: None,
            node_name: "node-1".to_owned(),
            ranges: Ranges {
                cluster_ips: vec![
                    "10.96.0.0/16".parse().unwrap(),
                    "fd00:10:96::/112".parse().unwrap(),
                ],
                node_ports: 30000..=32767,
            },
            window,
            limits,
        })
        .await
        .unwrap();
        Self { server, directory }
    }

    pub async fn client(&self) -> kube::Client {
        self.config().await.try_into().unwrap()
    }

    /// A connection of another user, who may do everything and speaks HTTP/1.1.
    pub async fn connect(&self, user: &str) -> TlsStream<TcpStream> {
        let authority = Authority::open(&self.directory.path().join("pki")).unwrap();
        let groups = vec!["system:masters".to_owned()];
        let identity = Identity { user: user.to_owned(), groups };
        let client = authority.client(&identity).unwrap();
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(authority.certificate().as_bytes());
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let stream = TcpStream::connect(self.server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    pub async fn config(&self) -> kube::Config {
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.server.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()
    }
}
