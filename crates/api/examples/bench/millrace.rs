//! The embedded API as a server, and as what is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use lb_api::http::{ApiLimits, CertificateAuthority, ClientIdentity, ClientRole};
use lb_api::kinds::AllocationRanges;
use lb_api::server::{ApiServerOptions, EmbeddedApiServer as Api};
use lb_api::storage::ChangeWindow;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::connection::{Connection, perform};
use super::load::{CHANGES, Load, name, object, service};
use super::process::Server;
use super::report::{Figures, ServiceFigures, Writes};

/// Connections of the writing clients.
const CONNECTIONS: usize = 8;
/// Watches on one connection. The server allows 250 streams.
const WATCHES: usize = 200;
const PATH: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Lists of one kind, of which the median counts.
const LISTS: usize = 5;

/// Serves until its standard input ends.
pub fn serve(directory: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Api::start(ApiServerOptions {
            data_directory: directory.to_owned(),
            bind: "127.0.0.1:0".parse().unwrap(),
            kubeconfig: None,
            node_name: "node-1".to_owned(),
            ranges: AllocationRanges {
                cluster_ips: vec!["10.96.0.0/16".parse().unwrap()],
                node_ports: 30000..=32767,
            },
            window: ChangeWindow::default(),
            limits: ApiLimits::default(),
            declarations: Vec::new(),
            namespaces: Vec::new(),
        });
        let server = server.await.unwrap();
        println!("serves {}", server.address);
        let input = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        let _ = input.await;
    });
}

struct Target {
    address: SocketAddr,
    directory: PathBuf,
}

impl Target {
    async fn connect(&self, user: &str) -> Connection {
        let authority = CertificateAuthority::open(&self.directory.join("pki")).unwrap();
        let client =
            authority.client(&ClientIdentity::new(user, ClientRole::Administrator), 1).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(authority.certificate().as_bytes());
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Connection::tls(self.address, Arc::new(config)).await
    }
}

fn request(method: &str, path: &str, type_: &str, body: String) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
    request.header("content-type", type_).body(Full::from(body)).unwrap()
}

/// A server with an empty store, and connections to it.
struct Running {
    server: Server,
    target: Target,
    connections: Vec<Connection>,
    _store: tempfile::TempDir,
}

impl Running {
    async fn start(directory: &Path) -> Self {
        let store = tempfile::tempdir_in(directory).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--serve").arg(store.path());
        let (server, line) = Server::start(&mut command, "serves ");
        let address = line.split(' ').nth(1).unwrap().parse().unwrap();
        let target = Target { address, directory: store.path().to_owned() };
        let mut connections = Vec::new();
        for number in 0..CONNECTIONS {
            // As several users: one may use half of the server only.
            connections.push(target.connect(&format!("client-{}", number % 2)).await);
        }
        Self { server, target, connections, _store: store }
    }
}

/// Measures lists of Services: all at once and in pages, of half of them and of all.
pub async fn measure_services(load: &Load, directory: &Path) -> ServiceFigures {
    let Running { server, connections, _store, .. } = &Running::start(directory).await;
    let empty = server.memory();
    let mut of_half = None;
    for half in [0..load.services / 2, load.services / 2..load.services] {
        let create = |number| async move {
            let body = service(number);
            let request = request("POST", SERVICES, "application/json", body);
            connections[number % CONNECTIONS].fetch(request).await;
        };
        let first = half.start;
        perform(half.len(), load.clients, |number| create(first + number)).await;
        if of_half.is_none() {
            of_half = Some(median_of_lists(|| list_pages(&connections[0])).await);
        }
    }
    let memory = (server.memory() - empty) / load.services as u64;
    let all =
        || async { connections[0].fetch(request("GET", SERVICES, "", String::new())).await.len() };
    ServiceFigures {
        services: load.services,
        memory,
        list: median_of_lists(all).await,
        pages: median_of_lists(|| list_pages(&connections[0])).await,
        pages_of_half: of_half.unwrap(),
        size: all().await / load.services,
    }
}

async fn median_of_lists<F: Future<Output = usize>>(list: impl Fn() -> F) -> Duration {
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let began = Instant::now();
        list().await;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[LISTS / 2]
}

/// Returns the number of octets.
async fn list_pages(connection: &Connection) -> usize {
    #[derive(Deserialize)]
    struct Page {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(rename = "continue", default)]
        next: String,
    }
    let (mut path, mut octets) = (format!("{SERVICES}?limit=500"), 0);
    loop {
        let body = connection.fetch(request("GET", &path, "", String::new())).await;
        octets += body.len();
        let page: Page = serde_json::from_slice(&body).unwrap();
        if page.metadata.next.is_empty() {
            return octets;
        }
        path = format!("{SERVICES}?limit=500&continue={}", page.metadata.next);
    }
}

pub async fn measure(load: &Load, directory: &Path) -> Figures {
    let Running { server, target, connections, _store } = &Running::start(directory).await;
    let empty = server.memory();
    let writes = async |method: &str, version: usize| {
        let began = Instant::now();
        let latencies = perform(load.objects, load.clients, |number| async move {
            let (path, type_, body) = match method {
                "POST" => (PATH.to_owned(), "application/json", object(number, version)),
                _ => {
                    let path = format!("{PATH}/{}", name(number));
                    (path, "application/json", object(number, version))
                }
            };
            let request = request(method, &path, type_, body);
            connections[number % CONNECTIONS].fetch(request).await;
        });
        let latencies = latencies.await;
        Writes { took: began.elapsed(), latencies }
    };
    let created = writes("POST", 1).await;
    let memory = (server.memory() - empty) / load.objects as u64;
    let updated = writes("PUT", 2).await;
    let began = Instant::now();
    let listed = connections[0].fetch(request("GET", PATH, "", String::new())).await;
    let list = began.elapsed();
    let full = server.memory();
    let revision = serde_json::from_slice::<serde_json::Value>(&listed).unwrap();
    let revision = revision["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let (sender, mut received) = mpsc::unbounded_channel();
    let mut watching = None;
    for number in 0..load.watchers {
        if number % WATCHES == 0 {
            watching = Some(target.connect(&format!("watcher-{}", number / WATCHES)).await);
        }
        let path = format!("{PATH}?watch=true&resourceVersion={revision}");
        let response = watching.as_ref().unwrap().send(request("GET", &path, "", String::new()));
        let response = response.await;
        assert!(response.status().is_success(), "{}", response.status());
        tokio::spawn(count_lines(response.into_body(), sender.clone()));
    }
    let watcher_memory = server.memory().saturating_sub(full) / load.watchers.max(1) as u64;
    let mut fan_out = Vec::new();
    for change in 0..CHANGES {
        let began = Instant::now();
        let path = format!("{PATH}/{}", name(change));
        let body = object(change, 3);
        connections[0].fetch(request("PUT", &path, "application/json", body)).await;
        for _ in 0..load.watchers {
            received.recv().await.unwrap();
        }
        fan_out.push(began.elapsed());
    }
    Figures { created, updated, list, list_bytes: listed.len(), fan_out, memory, watcher_memory }
}

/// Reports each event of a watch: one line each.
async fn count_lines(mut body: Incoming, events: mpsc::UnboundedSender<()>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        for _ in data.iter().filter(|octet| **octet == b'\n') {
            let _ = events.send(());
        }
    }
}
