//! Connects to the first API server that accepts: TCP, and TLS with the name that it must prove.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::Result;
use axum::http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use kube::Config;
use kube::client::ConfigExt;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt};

use super::{Server, Servers};

/// A server in the same cluster answers within milliseconds; the next one waits for this.
const CONNECT: Duration = Duration::from_millis(1_500);
/// The look-up of a name, a few addresses, and a handshake with a busy server.
const PATIENCE: Duration = Duration::from_secs(8);
/// A server that disappears silently is detected after idle + interval * probes = 30 s.
const KEEPALIVE_IDLE_S: u32 = 15;
const KEEPALIVE_INTERVAL_S: u32 = 5;
const KEEPALIVE_PROBES: u32 = 3;
const UNACKNOWLEDGED_MS: u32 = 30_000;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type Tls = dyn Fn(Dial) -> HttpsConnector<Dial> + Send + Sync;

#[derive(Clone)]
pub struct Connector {
    servers: Arc<Servers>,
    tls: Arc<Tls>,
}

impl Connector {
    pub fn new(config: &Config, servers: Arc<Servers>) -> Result<Self> {
        let tls = Arc::new(config.rustls_client_config()?);
        let tls = move |dial| HttpsConnector::from((dial, Arc::clone(&tls)));
        Ok(Self { servers, tls: Arc::new(tls) })
    }

    /// Tries the servers in turn. The error names all of them.
    async fn connect(self) -> Result<Stream, BoxError> {
        let mut failures = Vec::new();
        for server in self.servers.candidates() {
            let attempt = self.servers.attempt(&server);
            match self.connect_to(&server).await {
                Ok(stream) => {
                    attempt.accepted();
                    return Ok(stream);
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "API server not reached");
                    failures.push(format!("{server}: {error}"));
                }
            }
        }
        Err(failures.join("; ").into())
    }

    async fn connect_to(&self, server: &Server) -> Result<Stream, BoxError> {
        let scheme = if server.is_tls { "https" } else { "http" };
        let name = Uri::builder().scheme(scheme).authority(server.name.as_str());
        let name = name.path_and_query("/").build()?;
        let connecting = (self.tls)(Dial(server.clone())).oneshot(name);
        timeout(PATIENCE, connecting).await.map_err(|_| timed_out(PATIENCE))?
    }
}

/// The URI of a request names the cluster: which of its servers it reaches is decided here.
impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// Connects to one server, whatever name it must prove.
struct Dial(Server);

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(dial(self.0.clone()))
    }
}

async fn dial(server: Server) -> io::Result<TokioIo<TcpStream>> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((server.host.as_str(), server.port)).await? {
        match connect(address).await {
            Ok(stream) => return Ok(TokioIo::new(stream)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| timed_out(CONNECT))??;
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::KeepAlive, &true)?;
    setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(&stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(&stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
    Ok(stream)
}

fn timed_out(patience: Duration) -> io::Error {
    let message = format!("no response within {} s", patience.as_secs_f32());
    io::Error::new(io::ErrorKind::TimedOut, message)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kube::config::{KubeConfigOptions, Kubeconfig};
    use lb_api::http::ApiLimits;
    use lb_api::kinds::AllocationRanges;
    use lb_api::server::{self, EmbeddedApiServer as ApiServer};
    use lb_api::storage::ChangeWindow;

    use super::*;

    /// A server with a certificate for 127.0.0.1, and the configuration of its clients.
    async fn start(directory: &Path) -> (ApiServer, Config) {
        let server = ApiServer::start(server::ApiServerOptions {
            data_directory: directory.to_owned(),
            bind: "127.0.0.1:0".parse().unwrap(),
            kubeconfig: None,
            node_name: "node-a".to_owned(),
            ranges: AllocationRanges {
                cluster_ips: vec!["10.96.0.0/16".parse().unwrap()],
                node_ports: 30_000..=32_767,
            },
            window: ChangeWindow::default(),
            limits: ApiLimits::default(),
            declarations: Vec::new(),
            namespaces: Vec::new(),
        });
        let server = server.await.unwrap();
        let kubeconfig = Kubeconfig::read_from(&server.kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        (server, config)
    }

    /// Nothing listens there. Not ports that the kernel chooses, which another test may get.
    const DEAD_PORTS: [u16; 2] = [9, 1];

    /// Servers of this configuration, and one that was learned.
    fn servers(urls: &[String], learned: Option<SocketAddr>) -> Arc<Servers> {
        let urls: Vec<Uri> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let servers = Servers::new(&urls, &Config::new(urls[0].clone()), None).unwrap();
        servers.state().learned.extend(learned);
        servers
    }

    async fn connect(config: &Config, servers: &Arc<Servers>) -> Result<(), String> {
        let connector = Connector::new(config, Arc::clone(servers)).unwrap();
        let stream = connector.connect().await;
        stream.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_learned_server_that_proves_the_configured_name_takes_over() {
        let directory = tempfile::tempdir().unwrap();
        let (server, config) = start(directory.path()).await;
        let dead = format!("https://127.0.0.1:{}", DEAD_PORTS[0]);
        let servers = servers(&[dead], Some(server.address));
        connect(&config, &servers).await.unwrap();
        assert_eq!(servers.candidates()[0].port, server.address.port(), "it is tried first now");
    }

    #[tokio::test]
    async fn a_server_that_proves_another_name_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let (server, config) = start(directory.path()).await;
        let other = format!("https://api.invalid:{}", DEAD_PORTS[0]);
        let servers = servers(&[other], Some(server.address));
        let error = connect(&config, &servers).await.unwrap_err();
        assert!(error.contains(&format!("{}: ", server.address)), "{error}");
        assert!(error.contains("certificate"), "{error}");
        assert_eq!(servers.candidates()[0].host, "api.invalid");
    }

    #[tokio::test]
    async fn each_configured_server_proves_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let (server, config) = start(directory.path()).await;
        let dead = format!("https://127.0.0.9:{}", DEAD_PORTS[0]);
        let url = format!("https://127.0.0.1:{}", server.address.port());
        connect(&config, &servers(&[dead, url], None)).await.unwrap();
    }

    #[tokio::test]
    async fn the_error_names_every_server() {
        let directory = tempfile::tempdir().unwrap();
        let (_server, config) = start(directory.path()).await;
        let dead = DEAD_PORTS.map(|port| format!("127.0.0.1:{port}"));
        let urls = dead.clone().map(|address| format!("https://{address}"));
        let error = connect(&config, &servers(&urls, None)).await.unwrap_err();
        assert!(dead.iter().all(|address| error.contains(address.as_str())), "{error}");
    }
}
