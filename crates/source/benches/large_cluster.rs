//! Measures what a large cluster costs the agent and its API server, for docs/operations.md:
//!
//! ```console
//! $ cargo bench -p lb-source
//! ```
//!
//! The client runs in a process of its own, so that its memory is its own.

// A failure ends the measurement.
#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kube::{Client, Config};
use lb_rules::model::{NodeContext, resolve_service};
use lb_rules::store::Store;
use lb_source::{Cluster, Event, Extent, Source};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;

use server::{Dialect, NODES, SERVICES, SLICES, Server};

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/cluster/server/mod.rs"]
mod server;

/// The server waits no longer for its client.
pub const SOON: Duration = Duration::from_secs(50);

const SERVICE_COUNT: usize = 10_000;
const ENDPOINTS: usize = 10;
/// The goal for the source and its objects in the store.
const MOST_MEMORY_MB: u64 = 100;
/// Is set in the process of the client.
const ADDRESS: &str = "MILLRACE_LOAD_ADDRESS";

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

/// A proxy between the two: counts bytes to the client, and records the time of the last one.
#[derive(Default)]
struct Passed {
    bytes: AtomicU64,
    last: AtomicU64,
}

async fn pass_on(server: SocketAddr, passed: Arc<Passed>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let server = TcpStream::connect(server).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
            });
            let passed = Arc::clone(&passed);
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                    if to_client.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                    passed.bytes.fetch_add(length as u64, Ordering::Relaxed);
                    passed.last.store(micros(), Ordering::Relaxed);
                }
            });
        }
    });
    address
}

/// Metadata as large as in real clusters, with fields that the agent does not use.
fn metadata(name: &str, labels: &Value) -> Value {
    let managed = json!({
        "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:ports": {".": {}, "k:{\"port\":80}": {"f:port": {}}}, "f:type": {}}}
    });
    json!({
        "name": name, "namespace": "default", "uid": format!("1f0c9d5e-0000-4000-8000-{name:0>12}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels, "managedFields": [managed]
    })
}

fn service(number: usize) -> Value {
    let address = format!("10.{}.{}.{}", 96 + (number >> 16), (number >> 8) & 255, number & 255);
    json!({
        "metadata": metadata(&format!("service-{number}"), &json!({"app": "web"})),
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "selector": {"app": format!("web-{number}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]
        },
        "status": {"loadBalancer": {}}
    })
}

fn slice(number: usize) -> Value {
    let name = format!("service-{number}-abcde");
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|index| {
            let pod = number * ENDPOINTS + index;
            json!({
                "addresses": [format!("10.{}.{}.{}", 128 + (pod >> 16), (pod >> 8) & 255, pod & 255)],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{}", pod % 5_000), "zone": "zone-a",
                "targetRef": {"kind": "Pod", "namespace": "default",
                    "name": format!("web-{number}-6d4cf56db6-{index:0>5}"),
                    "uid": format!("2f0c9d5e-0000-4000-8000-{pod:0>12}")}
            })
        })
        .collect();
    let labels = json!({
        "app": "web", "kubernetes.io/service-name": format!("service-{number}"),
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"
    });
    json!({
        "metadata": metadata(&name, &labels), "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]
    })
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    if let Ok(address) = env::var(ADDRESS) {
        read_cluster(&address).await;
    } else if env::args().any(|argument| argument == "--bench") {
        // `cargo test` does not measure.
        measure_reading().await;
    }
}

async fn measure_reading() {
    let server = Server::start().await;
    server.put(NODES, json!({"metadata": {"name": "node-a"}}));
    for number in 0..SERVICE_COUNT {
        server.put(SERVICES, service(number));
        server.put(SLICES, slice(number));
    }
    for dialect in [Dialect::Streams, Dialect::Lists, Dialect::Pages] {
        server.speak(dialect);
        let asked = server.requests().len();
        let passed = Arc::new(Passed::default());
        let address = pass_on(server.address(), Arc::clone(&passed)).await;
        let began = micros();
        let client = Command::new(env::current_exe().unwrap())
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .output();
        let output = client.await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let figures = text.lines().find(|line| line.starts_with('{')).expect("figures");
        let figures: Value = serde_json::from_str(figures).unwrap();
        let of = |name: &str| figures[name].as_u64().unwrap();
        let last = passed.last.load(Ordering::Relaxed);
        println!(
            "{dialect:?}: {} requests, {:.1} MB, last byte after {:.2} s, ready {:.2} s later, \
             CPU {:.2} s, anonymous memory {} MB at most, {} MB when ready",
            server.requests().len() - asked,
            passed.bytes.load(Ordering::Relaxed) as f64 / 1e6,
            last.saturating_sub(began) as f64 / 1e6,
            of("ready").saturating_sub(last) as f64 / 1e6,
            of("cpu_ms") as f64 / 1e3,
            of("most_memory_mb"),
            of("memory_mb"),
        );
        assert_eq!(of("service_ports"), SERVICE_COUNT as u64);
        assert!(of("most_memory_mb") <= MOST_MEMORY_MB);
    }
}

/// Anonymous memory in kB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Time of all threads, in clock ticks of 10 ms.
fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<u64>().unwrap();
    (ticks(11) + ticks(12)) * 10
}

/// What the other process does.
async fn read_cluster(address: &str) {
    let most = Arc::new(AtomicU64::new(0));
    let sampled = Arc::clone(&most);
    std::thread::spawn(move || {
        loop {
            sampled.fetch_max(memory(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let (sender, mut events) = mpsc::unbounded_channel();
    tokio::spawn(Cluster::new(client, "node-a").run(sender));
    let mut store = Store::default();
    while let Some(event) = events.recv().await {
        if matches!(event, Event::Synced(Extent::All)) {
            break;
        }
        apply(&mut store, event);
    }
    let node = NodeContext::of("node-a", store.node("node-a"));
    let service_ports: usize = store
        .services()
        .map(|name| resolve_service(store.service(name).unwrap(), &store.slices(name), &node))
        .map(|resolved| resolved.service_ports.len())
        .sum();
    let figures = json!({
        "ready": micros(), "cpu_ms": cpu_ms(), "service_ports": service_ports,
        "most_memory_mb": most.load(Ordering::Relaxed) / 1000, "memory_mb": memory() / 1000
    });
    println!("\n{figures}");
}

fn apply(store: &mut Store, event: Event) {
    match event {
        Event::Applied(object) => drop(store.apply(object)),
        Event::Deleted(reference) => drop(store.delete(&reference)),
        Event::Together(events) => events.into_iter().for_each(|event| apply(store, event)),
        Event::Problem(problem) => panic!("{problem}"),
        Event::Synced(_) => {}
    }
}
