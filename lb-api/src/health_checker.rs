//! Probes endpoints and updates `ready` in the EndpointSlices that ask for it. Without a cluster
//! nothing else checks backends.
//!
//! A slice asks with the annotation `millrace.io/health-check`: `tcp`, or `http:/path`. All ports
//! of an endpoint must respond. A ready endpoint becomes unready after two consecutive failures, an
//! unready one becomes ready after one success.
//!
//! Invariant: each slice has rounds of its own. Dead endpoints delay the checks of others only when
//! `PROBES` of them are waited for at the same time.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::kinds::{self, Kind};
use super::operations::{self, Api, Request};
use super::storage::{Key, Stored};

const ANNOTATION: &str = "millrace.io/health-check";
const MANAGER: &str = "millrace-health-checker";
const TIMING: Timing = Timing { round: Duration::from_secs(2), patience: Duration::from_secs(1) };
/// Probes at the same time, of all slices.
const PROBES: usize = 2048;
/// Consecutive failures that make an endpoint unready.
const FAILURES: u32 = 2;

#[derive(Debug, Clone, Copy)]
struct Timing {
    /// Between two checks of a slice.
    round: Duration,
    /// The longest wait for a response.
    patience: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Check {
    Tcp,
    Http(String),
}

impl Check {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "tcp" => Some(Self::Tcp),
            Some(("http", path)) if path.starts_with('/') => {
                let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
                is_plain.then(|| Self::Http(path.to_owned()))
            }
            _ => None,
        }
    }
}

/// A slice's key, and its present state; `None` if it was deleted.
type Changed = (Key, Option<Arc<Stored>>);

pub async fn run(api: Api) {
    run_with(api, TIMING).await;
}

/// Keeps one task for each slice that asks for checks.
async fn run_with(api: Api, timing: Timing) {
    let Some(kind) = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice") else {
        return;
    };
    let prefix = operations::prefix(kind, None);
    let slots = Arc::new(Semaphore::new(PROBES));
    let mut revisions = api.storage().revisions();
    let mut checked: HashMap<Key, Checked> = HashMap::new();
    let mut position = None;
    loop {
        revisions.mark_unchanged();
        let changed = position.map(|from| api.storage().changes(&prefix, from, usize::MAX));
        let (slices, reached): (Vec<Changed>, u64) = match changed {
            Some(Ok((changes, reached))) => {
                let each = changes.iter().map(|change| (change.key.clone(), change.after.clone()));
                (each.collect(), reached)
            }
            // At the start, or when changes have left the window.
            None | Some(Err(_)) => {
                let Ok(page) = api.storage().list(&prefix, None, None, usize::MAX) else { return };
                checked.clear();
                let each = page.objects.into_iter().map(|(key, stored)| (key, Some(stored)));
                (each.collect(), page.revision)
            }
        };
        position = Some(reached);
        for (key, stored) in slices {
            let wish = stored.as_ref().and_then(|stored| wish(stored));
            if checked.get(&key).map(|checked| checked.wish.as_str()) == wish {
                continue;
            }
            checked.remove(&key);
            let Some(wish) = wish else { continue };
            let task = Check::parse(wish).map(|check| {
                let slice = Slice { api: api.clone(), kind, key: key.clone(), check, timing };
                tokio::spawn(slice.follow(Arc::clone(&slots)))
            });
            if task.is_none() {
                tracing::warn!(
                    object = %key,
                    annotation = %ANNOTATION,
                    value = wish,
                    fix = "write tcp, or http:/path",
                    "invalid health check annotation"
                );
            }
            checked.insert(key, Checked { wish: wish.to_owned(), task });
        }
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

fn wish(slice: &Stored) -> Option<&str> {
    slice.object["metadata"]["annotations"][ANNOTATION].as_str()
}

/// A slice's annotation, and the task that checks it. The task ends when this is dropped.
struct Checked {
    wish: String,
    /// `None` if the annotation is invalid.
    task: Option<JoinHandle<()>>,
}

impl Drop for Checked {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Slice {
    api: Api,
    kind: &'static Kind,
    key: Key,
    check: Check,
    timing: Timing,
}

impl Slice {
    /// Checks the slice in its own rounds, whatever others need.
    async fn follow(self, slots: Arc<Semaphore>) {
        let round = self.timing.round;
        let mut rounds = interval_at(Instant::now() + jitter(&self.key, round), round);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures: HashMap<SocketAddr, u32> = HashMap::new();
        loop {
            rounds.tick().await;
            let Some(stored) = self.api.storage().get(&self.key) else { continue };
            look(&stored.object, &self.check, self.timing.patience, &mut failures, &slots).await;
            // Probes take time: the slice may have changed.
            let Some(stored) = self.api.storage().get(&self.key) else { continue };
            record_event(&self.api, self.kind, &stored, &failures).await;
        }
    }
}

/// Spreads the rounds of slices, always in the same way.
fn jitter(key: &str, round: Duration) -> Duration {
    let mut hasher = std::hash::DefaultHasher::new();
    key.hash(&mut hasher);
    round * u32::try_from(hasher.finish() % 1000).unwrap_or(0) / 1000
}

/// Probes all endpoints of a slice concurrently, and counts consecutive failures.
async fn look(
    slice: &Value,
    check: &Check,
    patience: Duration,
    failures: &mut HashMap<SocketAddr, u32>,
    slots: &Semaphore,
) {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let probes: HashSet<SocketAddr> =
        endpoints.flat_map(|endpoint| probes_of(slice, endpoint)).collect();
    failures.retain(|address, _| probes.contains(address));
    let results = join_all(probes.into_iter().map(|address| async move {
        // The semaphore is never closed.
        let _slot = slots.acquire().await;
        (address, probe(check, address, patience).await)
    }));
    for (address, result) in results.await {
        let count = failures.entry(address).or_default();
        match result {
            Ok(()) => *count = 0,
            Err(error) => {
                tracing::debug!(%address, error = format!("{error:#}"), "probe failed");
                *count = count.saturating_add(1);
            }
        }
    }
}

/// Writes changed conditions to the slice.
async fn record_event(
    api: &Api,
    kind: &'static Kind,
    slice: &Stored,
    failures: &HashMap<SocketAddr, u32>,
) {
    let mut endpoints = slice.object["endpoints"].clone();
    for endpoint in endpoints.as_array_mut().into_iter().flatten() {
        let was_ready = endpoint["conditions"]["ready"] != false;
        let probes = probes_of(&slice.object, endpoint);
        let counts: Option<Vec<u32>> =
            probes.iter().map(|probe| failures.get(probe).copied()).collect();
        // Without a port that can be probed, or before all are, the condition stays as written.
        let Some(failures_in_a_row) = counts.and_then(|counts| counts.into_iter().max()) else {
            continue;
        };
        let ready = is_ready(was_ready, failures_in_a_row);
        if ready != was_ready {
            endpoint["conditions"]["ready"] = ready.into();
        }
    }
    if endpoints == slice.object["endpoints"] {
        return;
    }
    let metadata = &slice.object["metadata"];
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    // If the slice has changed meanwhile, this fails, and the next round tries again.
    let patch = json!({"metadata": {"resourceVersion": text("resourceVersion")},
        "endpoints": endpoints});
    let merge = "application/merge-patch+json";
    let request = Request::about(&slice.object, kind, MANAGER, merge, &patch);
    if let Err(failure) = api.patch(request).await
        && !matches!(failure.code, 404 | 409)
    {
        tracing::warn!(
            namespace = text("namespace"),
            name = text("name"),
            error = %failure,
            "endpoint slice not updated"
        );
    }
}

fn is_ready(was_ready: bool, failures: u32) -> bool {
    failures < if was_ready { FAILURES } else { 1 }
}

/// Only the first address of an endpoint is used, and only its TCP ports.
fn probes_of(slice: &Value, endpoint: &Value) -> Vec<SocketAddr> {
    let Some(address) = endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok())
    else {
        return Vec::new();
    };
    let ports = slice["ports"].as_array().into_iter().flatten();
    ports
        .filter(|port| matches!(port["protocol"].as_str(), None | Some("TCP")))
        .filter_map(|port| u16::try_from(port["port"].as_u64()?).ok())
        .map(|port| SocketAddr::new(address, port))
        .collect()
}

async fn probe(check: &Check, address: SocketAddr, patience: Duration) -> Result<()> {
    timeout(patience, async {
        let mut stream = TcpStream::connect(address).await?;
        let Check::Http(path) = check else {
            return Ok(());
        };
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        // `HTTP/1.1 200`
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        let status = String::from_utf8_lossy(&head).into_owned();
        ensure!(
            status.starts_with("HTTP/1.") && matches!(head[9], b'2' | b'3'),
            "it returned {status:?}"
        );
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::kinds::{Kinds, Ranges};
    use crate::storage::{Storage, Window};

    #[test]
    fn valid_checks_are_parsed_and_others_refused() {
        assert_eq!(Check::parse("tcp"), Some(Check::Tcp));
        assert_eq!(Check::parse("http:/ok?a=b"), Some(Check::Http("/ok?a=b".to_owned())));
        for nonsense in ["", "udp", "http", "http:ok", "http:/a b", "http:/a\r\nX: y"] {
            assert_eq!(Check::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn one_failure_is_forgiven_and_one_success_is_enough() {
        for (was_ready, failures, expected) in [
            (true, 0, true),
            (true, 1, true),
            (true, 2, false),
            (false, 1, false),
            (false, 5, false),
            (false, 0, true),
        ] {
            assert_eq!(is_ready(was_ready, failures), expected, "{was_ready} {failures}");
        }
    }

    #[test]
    fn all_tcp_ports_of_the_first_address_are_tried() {
        let slice = json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 81},
            {"port": 53, "protocol": "UDP"}, {"name": "none"}]});
        let endpoint = json!({"addresses": ["fd00::1", "fd00::2"]});
        let addresses: Vec<String> =
            probes_of(&slice, &endpoint).iter().map(SocketAddr::to_string).collect();
        assert_eq!(addresses, ["[fd00::1]:80", "[fd00::1]:81"]);
    }

    /// A server that sends this response to one connection.
    async fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Waits until the client has read it.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        address
    }

    #[tokio::test]
    async fn probes_report_whether_a_server_responds() {
        let http = Check::Http("/".to_owned());
        assert!(probe(&Check::Tcp, server("").await, TIMING.patience).await.is_ok());
        assert!(
            probe(&http, server("HTTP/1.1 204 No Content\r\n\r\n").await, TIMING.patience)
                .await
                .is_ok()
        );
        assert!(
            probe(&http, server("HTTP/1.1 503 Busy\r\n\r\n").await, TIMING.patience).await.is_err()
        );
        assert!(
            probe(&http, server("SSH-2.0-OpenSSH_9.9\r\n").await, TIMING.patience).await.is_err()
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        assert!(probe(&Check::Tcp, nobody, TIMING.patience).await.is_err());
    }

    async fn create(api: &Api, plural: (&str, &str, &str), object: Value) {
        let kind = api.kinds().find(plural.0, plural.1, plural.2).unwrap();
        let mut request = Request::about(&object, kind, MANAGER, "application/json", &object);
        request.target.namespace = kind.namespaced.then(|| "default".to_owned());
        request.target.name = None;
        api.create(request).await.unwrap();
    }

    fn slice(name: &str, check: &str, address: SocketAddr) -> Value {
        json!({
            "metadata": {"name": name, "annotations": {ANNOTATION: check}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address.ip()]}],
            "ports": [{"port": address.port()}],
        })
    }

    /// Loopback is not valid in a slice.
    fn own_address() -> Option<IpAddr> {
        nix::ifaddrs::getifaddrs().unwrap().find_map(|interface| {
            let address = interface.address?.as_sockaddr_in()?.ip();
            (!address.is_loopback() && !address.is_link_local()).then_some(address.into())
        })
    }

    #[tokio::test]
    async fn an_endpoint_that_never_responds_delays_no_other_slice() {
        let Some(address) = own_address() else {
            eprintln!("skipped: no address except loopback");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let storage = Storage::open(directory.path(), Window::default()).unwrap();
        let ranges = Ranges {
            cluster_ips: vec!["10.96.0.0/16".parse().unwrap()],
            node_ports: 30000..=32767,
        };
        let api = Api::new(storage, Kinds::default(), ranges).unwrap();
        create(&api, ("", "v1", "namespaces"), json!({"metadata": {"name": "default"}})).await;
        let silent = TcpListener::bind((address, 0)).await.unwrap();
        let closed = TcpListener::bind((address, 0)).await.unwrap();
        let slices = ("discovery.k8s.io", "v1", "endpointslices");
        for (name, listener) in [("a", &silent), ("b", &closed)] {
            create(&api, slices, slice(name, "http:/", listener.local_addr().unwrap())).await;
        }
        drop(closed);
        let hour = Duration::from_secs(3600);
        let timing = Timing { round: Duration::from_millis(10), patience: hour };
        let checker = tokio::spawn(run_with(api.clone(), timing));
        let key = "endpointslices.discovery.k8s.io/default/b";
        let unready = async {
            while api.storage().get(key).unwrap().object["endpoints"][0]["conditions"]["ready"]
                != false
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(120), unready).await.expect("unready");
        checker.abort();
    }
}
