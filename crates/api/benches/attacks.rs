//! Measures what attacks by one client cost another, and the server's memory, for
//! docs/design/embedded-api.md:
//!
//! ```console
//! $ cargo bench -p lb-api
//! ```
//!
//! The server runs in a process of its own, so that its memory is its own. That each attack is
//! refused or bounded is checked by tests (`tests/api/hostile.rs` and others).

// A failure ends the measurement.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchParams};
use lb_api::http::ClientRole;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use raw::{certified, connect_with, try_send};
use server::{Location, TestServer};

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/api/raw.rs"]
mod raw;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/api/server.rs"]
mod server;

/// Is set in the process of the server.
const SERVER: &str = "MILLRACE_ATTACKED_SERVER";
/// How long each attack lasts.
const LENGTH: Duration = Duration::from_secs(5);
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const JSON: &str = "application/json";
/// Watches on one connection. The server allows 250 streams.
const WATCHES: usize = 200;

/// One client of an attack. It repeats itself until it is aborted, and notes the outcomes.
type Attacker = fn(Location, Outcomes) -> BoxFuture<'static, ()>;

#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<BTreeMap<String, u64>>>);

impl Outcomes {
    fn note(&self, outcome: impl ToString) {
        *self.0.lock().unwrap().entry(outcome.to_string()).or_default() += 1;
    }

    fn text(&self) -> String {
        let outcomes = self.0.lock().unwrap();
        outcomes
            .iter()
            .map(|(what, count)| format!("{count} x {what}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Sends one request over and over, each on a connection of its own.
fn repeat(
    server: Location,
    outcomes: Outcomes,
    request: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let config = certified(&server, "attacker");
        loop {
            match try_send(&server, config.clone(), request, content_type, &body).await {
                Ok((status, _)) => outcomes.note(status),
                Err(_) => outcomes.note("refused"),
            }
        }
    })
}

/// Opens connections, sends the beginning of a request, then octet after octet.
fn trickle(server: Location, outcomes: Outcomes, head: &'static str) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let config = certified(&server, "attacker");
        loop {
            let Ok(mut stream) = connect_with(&server, config.clone()).await else {
                outcomes.note("refused");
                continue;
            };
            outcomes.note("connected");
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                sleep(Duration::from_millis(50)).await;
                sent = stream.write_all(b" ").await;
            }
        }
    })
}

/// Opens 1,000 watches, over HTTP/2, and reads what they get: each change of the other user.
async fn watch(server: Location, outcomes: Outcomes) {
    let client = server.client_as("attacker", ClientRole::Administrator).await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let list = secrets.list(&ListParams::default().limit(1)).await.unwrap();
    let revision = list.metadata.resource_version.unwrap();
    let mut config = Arc::unwrap_or_clone(certified(&server, "attacker"));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let mut reading = JoinSet::new();
    for _ in 0..1000 / WATCHES {
        let Ok(stream) = connect_with(&server, config.clone()).await else {
            outcomes.note("connections refused");
            continue;
        };
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        reading.spawn(async move { drop(connection.await) });
        for _ in 0..WATCHES {
            let uri = format!("https://localhost{SECRETS}?watch=true&resourceVersion={revision}");
            let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
            match sender.send_request(request).await {
                Ok(response) => {
                    outcomes.note(response.status().as_str());
                    let mut body = response.into_body();
                    reading.spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
                }
                Err(_) => outcomes.note("broken"),
            }
        }
    }
    while reading.join_next().await.is_some() {}
}

const ATTACKS: &[(&str, usize, Attacker)] = &[
    ("nothing", 0, |_, _| Box::pin(async {})),
    ("connections without a handshake", 8, |server, outcomes| {
        Box::pin(async move {
            let mut open = Vec::new();
            loop {
                match TcpStream::connect(server.address).await {
                    Ok(stream) => open.push(stream),
                    Err(_) => outcomes.note("refused"),
                }
                outcomes.note("opened");
                if open.len() > 1000 {
                    open.clear();
                }
            }
        })
    }),
    ("headers, octet after octet", 400, |server, outcomes| {
        trickle(server, outcomes, "GET /version HTTP/1.1\r\nHost: a\r\nX-Slow: ")
    }),
    ("bodies, octet after octet", 400, |server, outcomes| {
        let head = "POST /api/v1/namespaces/default/secrets HTTP/1.1\r\nHost: a\r\n\
                    Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{";
        trickle(server, outcomes, head)
    }),
    ("watches that are never read", 10, |server, outcomes| {
        Box::pin(async move {
            let client = server.client_as("attacker", ClientRole::Administrator).await;
            let secrets: Api<Secret> = Api::default_namespaced(client);
            let mut open = Vec::new();
            for _ in 0..1000 {
                let parameters = WatchParams::default();
                let watch = secrets.watch(&parameters, "0");
                match timeout(Duration::from_millis(500), watch).await {
                    Ok(Ok(watch)) => {
                        open.push(watch.boxed());
                        outcomes.note("opened");
                    }
                    // kube-rs repeats what is refused with 429.
                    _ => outcomes.note("refused"),
                }
            }
            // They never read.
            std::future::pending::<()>().await;
        })
    }),
    ("10,000 watches", 10, |server, outcomes| Box::pin(watch(server, outcomes))),
    ("lists of 10,000 objects", 8, |server, outcomes| {
        repeat(server, outcomes, "GET /api/v1/secrets", JSON, Vec::new())
    }),
    ("JSON of a million values", 8, |server, outcomes| {
        let body = format!("{{\"x\": [0{}]}}", ",0".repeat(1_000_000));
        repeat(server, outcomes, "POST /api/v1/namespaces/default/secrets", JSON, body.into())
    }),
    ("JSON nested 100,000 times", 8, |server, outcomes| {
        let body = "[".repeat(100_000);
        repeat(server, outcomes, "POST /api/v1/namespaces/default/secrets", JSON, body.into())
    }),
    ("YAML aliases", 8, |server, outcomes| {
        let (list, aliases) = (vec!["1"; 5000].join(", "), vec!["*a"; 5000].join(", "));
        let body = format!("a: &a [{list}]\nb: &b [{aliases}]\nc: [{aliases}]\n");
        let request = "POST /api/v1/namespaces/default/secrets";
        repeat(server, outcomes, request, "application/yaml", body.into())
    }),
    ("JSON Patch that doubles the object", 8, |server, outcomes| {
        let copies: Vec<Value> = (0..40)
            .map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")}))
            .collect();
        let body = Value::Array(copies).to_string().into();
        let request = "PATCH /api/v1/namespaces/default/secrets/victim";
        repeat(server, outcomes, request, "application/json-patch+json", body)
    }),
    ("strategic merge of 5,000 owners", 8, |server, outcomes| {
        let owners: Vec<Value> = (0..5000)
            .map(|n| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": format!("{n}")}))
            .collect();
        let body = json!({"metadata": {"ownerReferences": owners}}).to_string().into();
        let request = "PATCH /api/v1/namespaces/default/secrets/merged";
        repeat(server, outcomes, request, "application/strategic-merge-patch+json", body)
    }),
    ("server-side apply of 20,000 fields", 8, |server, outcomes| {
        let data: serde_json::Map<String, Value> =
            (0..20_000).map(|n| (format!("k{n}"), "eA==".into())).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "applied"}, "data": data,
        });
        let request = "PATCH /api/v1/namespaces/default/secrets/applied?fieldManager=a&force=true";
        let body = object.to_string().into();
        repeat(server, outcomes, request, "application/apply-patch+yaml", body)
    }),
    ("selectors of 1,000 requirements", 8, |server, outcomes| {
        let selector = "a!=b,".repeat(1000) + "a";
        let request = format!("GET {SECRETS}?labelSelector={selector}").leak();
        repeat(server, outcomes, request, JSON, Vec::new())
    }),
    ("compressed bodies", 8, |server, outcomes| {
        Box::pin(async move {
            let config = certified(&server, "attacker");
            loop {
                let Ok(mut stream) = connect_with(&server, config.clone()).await else { continue };
                let head = "POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\n\
                            Content-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n";
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&[0; 1_000_000]).await;
                outcomes.note("sent");
            }
        })
    }),
];

#[tokio::main(worker_threads = 2)]
async fn main() {
    if env::var_os(SERVER).is_some() {
        serve_until_input_ends().await;
    } else if env::args().any(|argument| argument == "--bench") {
        // `cargo test` does not measure.
        measure_attacks().await;
    }
}

/// Attacks one after the other, each by one user, while another one works.
async fn measure_attacks() {
    let mut server = Attacked::start();
    fill(&server.location).await;
    println!(
        "\n| attack by one user | outcomes | p50 ms | p99 ms | longest ms | failed | memory MB | CPU % |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for &(name, clients, attacker) in ATTACKS {
        server.forget_peak();
        let outcomes = Outcomes::default();
        let mut running = JoinSet::new();
        for _ in 0..clients {
            running.spawn(attacker(server.location.clone(), outcomes.clone()));
        }
        let used = server.cpu_seconds();
        let (latencies, failed) = work(&server.location).await;
        let used = 100.0 * (server.cpu_seconds() - used) / LENGTH.as_secs_f64();
        let peak = server.peak_mb();
        running.shutdown().await;
        let of = |share: usize| latencies[(latencies.len() - 1) * share / 100];
        let (p50, p99, longest) = (of(50), of(99), of(100));
        let outcomes = outcomes.text();
        println!(
            "| {name} | {outcomes} | {p50:.1} | {p99:.1} | {longest:.1} | {failed} of {} | {peak} | {used:.0} |",
            latencies.len()
        );
        assert!(server.process.try_wait().unwrap().is_none(), "the server has ended");
    }
}

/// 10,000 objects, and one for the other client.
async fn fill(server: &Location) {
    let client = server.client_as("victim", ClientRole::Administrator).await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let create = |name: String| {
        let secrets = secrets.clone();
        let secret = json!({"metadata": {"name": name}, "stringData": {"key": "x".repeat(500)}});
        async move {
            let secret = serde_json::from_value(secret).unwrap();
            secrets.create(&PostParams::default(), &secret).await.unwrap();
        }
    };
    create("victim".to_owned()).await;
    create("merged".to_owned()).await;
    let all = futures::stream::iter((0..10_000).map(|n| create(format!("s{n}"))));
    all.buffer_unordered(64).collect::<()>().await;
}

/// Works as another client, in a thread of its own: there it does not wait for the attackers' tasks
/// in this process.
async fn work(server: &Location) -> (Vec<f64>, usize) {
    let server = server.clone();
    let working = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(read_and_write(&server))
    });
    working.await.unwrap()
}

/// Returns the latencies in ms, sorted, and how many requests failed.
async fn read_and_write(server: &Location) -> (Vec<f64>, usize) {
    let client = server.client_as("victim", ClientRole::Administrator).await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let (mut latencies, mut failed) = (Vec::new(), 0);
    let began = Instant::now();
    while began.elapsed() < LENGTH {
        let asked = Instant::now();
        let outcome = if latencies.len() % 2 == 0 {
            secrets.get("s1").await
        } else {
            let patch = json!({"metadata": {"annotations": {"n": latencies.len().to_string()}}});
            secrets.patch("s2", &PatchParams::default(), &Patch::Merge(patch)).await
        };
        if let Err(error) = outcome {
            failed += 1;
            eprintln!("{error:?}");
        }
        latencies.push(asked.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(2)).await;
    }
    latencies.sort_by(f64::total_cmp);
    (latencies, failed)
}

/// A server in another process.
struct Attacked {
    process: Child,
    /// Open while the server runs: it prints where it is.
    _output: Lines<BufReader<ChildStdout>>,
    location: Location,
}

impl Attacked {
    fn start() -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .env(SERVER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = output.by_ref().map(Result::unwrap).find(|line| line.starts_with("serves "));
        let line = line.unwrap();
        let mut words = line.split(' ').skip(1);
        let address = words.next().unwrap().parse().unwrap();
        let directory = PathBuf::from(words.next().unwrap());
        Self { process, _output: output, location: Location { address, directory } }
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.process.id()))
    }

    fn forget_peak(&self) {
        fs::write(self.file("clear_refs"), "5").unwrap();
    }

    /// Processor time that the server has used.
    fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(self.file("stat")).unwrap();
        // After the name, which may contain blanks.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        // Linux reports hundredths of a second everywhere.
        ticks as f64 / 100.0
    }

    fn peak_mb(&self) -> u64 {
        let status = fs::read_to_string(self.file("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other process. It ends with its standard input.
async fn serve_until_input_ends() {
    let server = TestServer::start().await;
    println!("\nserves {} {}", server.server.address, server.directory.path().display());
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = end.await;
}
