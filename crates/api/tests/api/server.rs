//! A server for one test.

use std::net::SocketAddr;
use std::path::PathBuf;

use lb_api::declared::KindDeclaration;
use lb_api::http::{ApiLimits, CertificateAuthority, ClientIdentity, ClientRole, kubeconfig};
use lb_api::kinds::AllocationRanges;
use lb_api::server::{ApiServerOptions, EmbeddedApiServer};
use lb_api::storage::ChangeWindow;
use tempfile::TempDir;

/// Where a server is, possibly in another process.
#[derive(Clone)]
pub struct Location {
    pub address: SocketAddr,
    pub directory: PathBuf,
}

impl Location {
    pub async fn client_as(&self, user: &str, role: ClientRole) -> kube::Client {
        let authority = CertificateAuthority::open(&self.directory.join("pki")).unwrap();
        let address = format!("https://{}", self.address);
        let text =
            kubeconfig::issue_kubeconfig(&authority, &address, &ClientIdentity::new(user, role), 1)
                .unwrap();
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        config.try_into().unwrap()
    }
}

pub struct TestServer {
    pub server: EmbeddedApiServer,
    pub directory: TempDir,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_declared(Vec::new()).await
    }

    /// With kinds of the test's own.
    pub async fn start_declared(declarations: Vec<KindDeclaration>) -> Self {
        Self::start_all(ChangeWindow::default(), ApiLimits::default(), declarations).await
    }

    pub async fn start_with(window: ChangeWindow, limits: ApiLimits) -> Self {
        Self::start_all(window, limits, Vec::new()).await
    }

    async fn start_all(
        window: ChangeWindow,
        limits: ApiLimits,
        declarations: Vec<KindDeclaration>,
    ) -> Self {
        Self::start_at("127.0.0.1:0", window, limits, declarations).await
    }

    pub async fn start_at(
        bind: &str,
        window: ChangeWindow,
        limits: ApiLimits,
        declarations: Vec<KindDeclaration>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = EmbeddedApiServer::start(ApiServerOptions {
            data_directory: directory.path().to_owned(),
            bind: bind.parse().unwrap(),
            kubeconfig: None,
            node_name: "node-1".to_owned(),
            ranges: AllocationRanges {
                cluster_ips: vec![
                    "10.96.0.0/16".parse().unwrap(),
                    "fd00:10:96::/112".parse().unwrap(),
                ],
                node_ports: 30000..=32767,
            },
            window,
            limits,
            declarations,
            namespaces: Vec::new(),
        })
        .await
        .unwrap();
        Self { server, directory }
    }

    pub async fn client(&self) -> kube::Client {
        self.config().await.try_into().unwrap()
    }

    /// A client of another user.
    pub async fn client_as(&self, user: &str, role: ClientRole) -> kube::Client {
        self.location().client_as(user, role).await
    }

    pub fn location(&self) -> Location {
        Location { address: self.server.address, directory: self.directory.path().to_owned() }
    }

    pub async fn config(&self) -> kube::Config {
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.server.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()
    }
}
