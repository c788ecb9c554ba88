//! Probes endpoints and updates `ready` in the EndpointSlices that ask for it. Without a cluster
//! nothing else checks backends.
//!
//! A slice asks with the annotation `millrace.io/health-check`: `tcp`, or `http:/path`. All ports
//! of an endpoint must respond. A ready endpoint becomes unready after two consecutive failures, an
//! unready one becomes ready after one success.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::kinds::{self, Kind, Subresource};
use super::operations::options::Query;
use super::operations::{self, Api, Request, Target};
use super::storage::{Key, Stored};

const ANNOTATION: &str = "millrace.io/health-check";
const MANAGER: &str = "millrace-health-checker";
const ROUND: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(1);
/// Consecutive failures that make an endpoint unready.
const FAILURES: u32 = 2;

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

/// The slice, and the address to probe.
type Probe = (Key, SocketAddr);

pub async fn run(api: Api) {
    let Some(kind) = kinds::find_kind("discovery.k8s.io/v1", "EndpointSlice") else {
        return;
    };
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures: HashMap<Probe, u32> = HashMap::new();
    let mut complained: HashSet<String> = HashSet::new();
    loop {
        rounds.tick().await;
        let Ok(page) = api.storage().list(&operations::prefix(kind, None), None, None, usize::MAX)
        else {
            continue;
        };
        let mut checked = HashSet::new();
        for (key, slice) in page.objects {
            let Some(wish) = slice.object["metadata"]["annotations"][ANNOTATION].as_str() else {
                continue;
            };
            match Check::parse(wish) {
                Some(check) => {
                    let probes = look(&key, &slice.object, &check, &mut failures).await;
                    checked.extend(probes);
                    tell(&api, kind, &key, &slice, &failures).await;
                }
                None if complained.insert(format!("{key} {wish}")) => tracing::warn!(
                    object = %key,
                    annotation = %ANNOTATION,
                    value = wish,
                    fix = "write tcp, or http:/path",
                    "invalid health check annotation"
                ),
                None => {}
            }
        }
        failures.retain(|probe, _| checked.contains(probe));
    }
}

/// Probes all endpoints of a slice concurrently, and counts consecutive failures.
async fn look(
    key: &Key,
    slice: &Value,
    check: &Check,
    failures: &mut HashMap<Probe, u32>,
) -> Vec<Probe> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let probes: HashSet<Probe> =
        endpoints.flat_map(|endpoint| probes_of(key, slice, endpoint)).collect();
    let probes: Vec<Probe> = probes.into_iter().collect();
    let results = join_all(probes.iter().map(|(_, address)| probe(check, *address))).await;
    for (probe, result) in probes.iter().zip(results) {
        let count = failures.entry(probe.clone()).or_default();
        match result {
            Ok(()) => *count = 0,
            Err(error) => {
                tracing::debug!(address = %probe.1, error = format!("{error:#}"), "probe failed");
                *count = count.saturating_add(1);
            }
        }
    }
    probes
}

/// Writes changed conditions to the slice.
async fn tell(
    api: &Api,
    kind: &'static Kind,
    key: &Key,
    slice: &Stored,
    failures: &HashMap<Probe, u32>,
) {
    let mut endpoints = slice.object["endpoints"].clone();
    for endpoint in endpoints.as_array_mut().into_iter().flatten() {
        let was_ready = endpoint["conditions"]["ready"] != false;
        let counts = probes_of(key, &slice.object, endpoint)
            .into_iter()
            .map(|probe| failures.get(&probe).copied().unwrap_or_default());
        // Without a port that can be probed, the condition stays as written.
        let Some(failures_in_a_row) = counts.max() else {
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
    let request = Request {
        target: Target {
            kind,
            namespace: text("namespace"),
            name: text("name"),
            subresource: Subresource::None,
        },
        query: Query::default(),
        user_agent: MANAGER.to_owned(),
        content_type: "application/merge-patch+json".to_owned(),
        body: Bytes::from(patch.to_string()),
    };
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
fn probes_of(key: &Key, slice: &Value, endpoint: &Value) -> Vec<Probe> {
    let Some(address) = endpoint["addresses"][0].as_str().and_then(|ip| ip.parse::<IpAddr>().ok())
    else {
        return Vec::new();
    };
    let ports = slice["ports"].as_array().into_iter().flatten();
    ports
        .filter(|port| matches!(port["protocol"].as_str(), None | Some("TCP")))
        .filter_map(|port| u16::try_from(port["port"].as_u64()?).ok())
        .map(|port| (key.clone(), SocketAddr::new(address, port)))
        .collect()
}

async fn probe(check: &Check, address: SocketAddr) -> Result<()> {
    timeout(PATIENCE, async {
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
            "it answers {status:?}"
        );
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

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
        let addresses: Vec<String> = probes_of(&"slice".into(), &slice, &endpoint)
            .into_iter()
            .map(|(_, address)| address.to_string())
            .collect();
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
        assert!(probe(&Check::Tcp, server("").await).await.is_ok());
        assert!(probe(&http, server("HTTP/1.1 204 No Content\r\n\r\n").await).await.is_ok());
        assert!(probe(&http, server("HTTP/1.1 503 Busy\r\n\r\n").await).await.is_err());
        assert!(probe(&http, server("SSH-2.0-OpenSSH_9.9\r\n").await).await.is_err());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        assert!(probe(&Check::Tcp, nobody).await.is_err());
    }
}
