//! Measures what 10,000 endpoints that are probed every two seconds cost:
//!
//! ```console
//! $ cargo bench -p lb-api --bench health_checks
//! ```
//!
//! The API server with the checker has a thread of its own, whose processor time counts. It includes what the kernel
//! does for the server's side of each connection, as these are on loopback: read it as an upper
//! bound.

// A failure ends the measurement.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use servers::{Grpc, answer_grpc_check, respond_with, self_signed_config, serve_at};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lb_api::kinds;
use lb_api::operations::storage_key;

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/api/server.rs"]
mod server;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../src/health_checker/servers.rs"]
mod servers;

const SLICES: usize = 10;
/// Of each slice.
const ENDPOINTS: usize = 1000;
const MEASURED_DURATION: Duration = Duration::from_secs(20);

fn main() {
    // `cargo test` does not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("\n| check | probes a second | processor time, % of one CPU | us a probe | unready |");
    println!("| --- | --- | --- | --- | --- |");
    for check in ["tcp", "http:/", "https:/", "grpc"] {
        measure(check);
    }
}

fn measure(check: &str) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let protocol = check.split(':').next().unwrap().to_owned();
    let counter = Counter::default();
    let counted = counter.clone();
    // The servers are on a thread of their own, until the process ends.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let address = start_server_on_all_addresses(&protocol, counted).await;
            sender.send(address).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let address: SocketAddr = receiver.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server::TestServer::start().await;
        let api = &server.server.api;
        let kind = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice").unwrap();
        let all: Vec<(String, Value)> = (0..SLICES)
            .map(|number| {
                let name = format!("s{number}");
                (storage_key(kind, Some("default"), &name), slice(number, check, address.port()))
            })
            .collect();
        // Not through the API, which refuses loopback addresses.
        let written = api.storage().write(move |transaction| {
            for (key, slice) in all {
                transaction.put(&key, slice);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        written.await.unwrap().unwrap();
        // Until every endpoint has been probed, and has a session.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (used, probes, began) = (used(), counter.get(), Instant::now());
        tokio::time::sleep(MEASURED_DURATION).await;
        let (used, probes) = (self::used() - used, counter.get() - probes);
        let seconds = began.elapsed().as_secs_f64();
        let unready: usize = (0..SLICES)
            .map(|number| {
                let key = storage_key(kind, Some("default"), &format!("s{number}"));
                let slice = api.storage().get(&key).unwrap();
                let endpoints = slice.object()["endpoints"].as_array().unwrap().clone();
                endpoints.iter().filter(|one| one["conditions"]["ready"] == false).count()
            })
            .sum();
        println!(
            "| {check} | {:.0} | {:.0} | {:.0} | {unready} |",
            probes as f64 / seconds,
            100.0 * used / seconds,
            1e6 * used / probes as f64,
        );
    });
}

/// All addresses are on loopback, and lead to one server.
fn slice(number: usize, check: &str, port: u16) -> Value {
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|index| {
            let address = format!("127.1.{}.{}", number * 4 + index / 250, index % 250 + 1);
            json!({"addresses": [address]})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("s{number}"), "namespace": "default", "uid": "u",
            "annotations": {"millrace.io/health-check": check}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": port}],
    })
}

/// The processor time of this thread in seconds.
fn used() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Counts connections.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Counter {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A healthy server of the protocol, at all addresses.
async fn start_server_on_all_addresses(protocol: &str, counter: Counter) -> SocketAddr {
    const OK: &str = "HTTP/1.1 200 OK\r\n\r\n";
    let acceptor = TlsAcceptor::from(self_signed_config());
    let protocol = protocol.to_owned();
    let one = move |stream: TcpStream| {
        counter.count();
        let (acceptor, protocol) = (acceptor.clone(), protocol.clone());
        async move {
            match protocol.as_str() {
                "https" => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        respond_with(stream, OK).await;
                    }
                }
                "grpc" => {
                    let grpc = Grpc { status: 1, error: None };
                    let service = service_fn(move |request| answer_grpc_check(grpc, request));
                    let server = http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                }
                "http" => respond_with(stream, OK).await,
                _ => respond_with(stream, "").await,
            }
        }
    };
    serve_at("0.0.0.0:0", one).await
}
