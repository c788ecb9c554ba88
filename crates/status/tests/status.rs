//! The agent's HTTP servers, with a plain client.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{Request, Response};
use lb_announce::LinkView;
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_rules::model::{AddressFamily, Kind, ObjectRef, ServiceName};
use lb_status::{
    AnnouncementMetrics, BfdMetrics, BgpMetrics, Check, Condition, Health, HealthChecks, Metrics,
    StatusAddresses,
};
use lb_waits::{Resource, Waits};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt};

use ports::free_port;

/// A long limit costs time only in failures.
const SOON: Duration = Duration::from_secs(120);

#[derive(Clone, Default)]
struct Posted(Arc<Mutex<Vec<Notice>>>);

impl Notices for Posted {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }
}

struct Received {
    status: u16,
    headers: String,
    body: String,
}

/// Sends a request as soon as the port is open.
async fn get(port: u16, path: &str) -> Received {
    get_from((Ipv4Addr::LOCALHOST, port).into(), path).await
}

async fn get_from(address: SocketAddr, path: &str) -> Received {
    let connect = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return stream,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let mut stream = timeout(SOON, connect).await.expect("the port is open");
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("a response").unwrap();
    let (headers, body) = answer.split_once("\r\n\r\n").unwrap();
    Received {
        status: headers.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers.to_lowercase(),
        body: body.to_owned(),
    }
}

struct Served {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    healthz: u16,
    metrics_port: u16,
}

async fn served(adopted: bool) -> Served {
    let (healthz, metrics_port) = (free_port(), free_port());
    let address = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let addresses = StatusAddresses { healthz: address(healthz), metrics: address(metrics_port) };
    let health = Arc::new(Health::new(adopted));
    let metrics = Arc::new(Metrics::new());
    let notices: Arc<dyn Notices> = Arc::new(Posted::default());
    lb_status::start_servers(&addresses, &health, &metrics, axum::Router::new(), &notices);
    Served { health, metrics, healthz, metrics_port }
}

#[tokio::test]
async fn healthz_is_about_traffic_and_livez_about_the_agent() {
    let served = served(false).await;
    assert_eq!(get(served.healthz, "/healthz").await.status, 503, "nothing is programmed yet");
    assert_eq!(get(served.healthz, "/livez").await.status, 200);

    served.health.record_programmed(SystemTime::now());
    assert_eq!(get(served.healthz, "/healthz").await.status, 503, "no program is attached");
    served.health.note_attached();
    let answer = get(served.healthz, "/healthz").await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers.contains("content-type: application/json"), "{}", answer.headers);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body["nodeEligible"], true);
    assert_eq!(body["healthy"], true);
    for field in ["lastUpdated", "currentTime"] {
        assert!(body[field].as_str().unwrap().starts_with("20"), "{body}");
    }
    for family in ["IPv4", "IPv6"] {
        assert_eq!(body["status"][family]["healthy"], true);
    }

    served.health.set_node_eligible(false);
    assert_eq!(get(served.healthz, "/healthz").await.status, 503);
    assert_eq!(get(served.healthz, "/livez").await.status, 200);

    let metrics = get(served.metrics_port, "/metrics").await.body;
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 3",
        "kubeproxy_proxy_livez_total{code=\"200\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn an_agent_that_adopted_tables_is_healthy_from_the_start() {
    assert_eq!(get(served(true).await.healthz, "/healthz").await.status, 200);
}

#[tokio::test]
async fn metrics_have_the_names_that_people_have_alerts_on() {
    let served = served(false).await;
    served.metrics.changed(lb_status::Changed::Endpoints, SystemTime::now());
    served.metrics.set_no_local_endpoints(AddressFamily::V4, 1, 2);
    served.metrics.set_no_local_endpoints(AddressFamily::V6, 3, 0);
    served.metrics.set_capacities([("frontends", 70_000)]);
    let before = get(served.metrics_port, "/metrics").await.body;
    assert!(before.contains("kubeproxy_sync_proxy_rules_endpoint_changes_pending 1"), "{before}");

    served.metrics.record_programmed(Duration::from_millis(3), SystemTime::now());
    served.metrics.programmed(AddressFamily::V4, Duration::from_millis(40));
    let answer = get(served.metrics_port, "/metrics").await;
    assert!(answer.headers.contains("content-type: application/openmetrics-text"));
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} ",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} ",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} ",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
        "kubeproxy_sync_proxy_rules_service_changes_pending 0",
        "kubeproxy_sync_proxy_rules_service_changes_total 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv4\"} 2",
        "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.05\",ip_family=\"IPv4\"} 1",
        "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.02\",ip_family=\"IPv4\"} 0",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"} 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv6\"} 3",
        "millrace_build_info{version=\"",
        "millrace_map_capacity{map=\"frontends\"} 70000",
    ] {
        assert!(answer.body.contains(line), "{line} is not in\n{}", answer.body);
    }
    assert!(answer.body.ends_with("# EOF\n"));
}

/// The columns of docs/metrics.md that a scrape of the agent contains: name, type, meaning.
fn documented() -> Vec<[String; 3]> {
    let document = include_str!("../../../docs/metrics.md");
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let others = ["ingress", "address", "metallb"].map(|part| format!("| `millrace_{part}_"));
    let rows = rows.filter(|line| !others.iter().any(|other| line.starts_with(other.as_str())));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, _labels, meaning] = cells[..] else { panic!("four columns: {row}") };
        [name.trim_matches('`'), kind, meaning].map(str::to_owned)
    })
    .collect()
}

/// Name, type and meaning of each metric of a scrape. Names are those of queries.
fn served_families(text: &str) -> Vec<[String; 3]> {
    let help = |family: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("# HELP {family} ")));
        line.unwrap_or_default().trim_end_matches('.').to_owned()
    };
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    families
        .map(|(family, kind)| {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            [format!("{family}{suffix}"), kind.to_owned(), help(family)]
        })
        .collect()
}

#[tokio::test]
async fn every_metric_is_documented_and_none_else() {
    let served = served(false).await;
    // Waits are only served while they are long.
    let began = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let _wait = Waits::of_process().begin_at(began, Resource::Key, "key");
    let metrics = &served.metrics;
    metrics.set_no_local_endpoints(AddressFamily::V4, 0, 0);
    metrics.set_capacities([("frontends", 1)]);
    metrics.set_usage(lb_status::Usage::default());
    metrics.set_without_room(0, &[("frontends", 0)]);
    metrics.set_attached(["tcx_egress"], 0);
    metrics.set_config(vec![("source", "manifests".to_owned())]);
    metrics.set_tunnel_nodes(0, 0);
    let condition = Arc::new(Condition::default());
    condition.set_announcements(vec![LinkView::default()]);
    metrics.add(AnnouncementMetrics::of(&condition));
    metrics.add(BgpMetrics::of(&condition));
    metrics.add(BfdMetrics::of(&condition));
    let client = tower::service_fn(|_: Request<()>| async { Ok::<_, ()>(Response::new(())) });
    let counted = metrics.requests().counting("192.0.2.1:6443").layer(client);
    counted.oneshot(Request::new(())).await.unwrap();
    get(served.healthz, "/healthz").await;
    get(served.healthz, "/livez").await;

    let mut found = served_families(&get(served.metrics_port, "/metrics").await.body);
    let mut documented = documented();
    found.sort();
    documented.sort();
    let rows = |families: &[[String; 3]]| -> String {
        let row =
            |[name, kind, meaning]: &[String; 3]| format!("| `{name}` | {kind} | {meaning} |\n");
        families.iter().map(row).collect()
    };
    assert!(
        found == documented,
        "docs/metrics.md must list what is served; without the labels:\n{}\nand lists:\n{}",
        rows(&found),
        rows(&documented)
    );
}

fn check(local_endpoints: usize) -> Check {
    let reference = ObjectRef::new(Kind::Service, Some("shop"), Some("web"));
    Check {
        service: ServiceName::new("shop", "web"),
        about: NoticeObject { reference, uid: "1234".to_owned() },
        local_endpoints,
    }
}

struct Checked {
    health: Arc<Health>,
    posted: Posted,
    checks: HealthChecks,
}

impl Checked {
    async fn wait_for_notice(&self) {
        let posted = async {
            while self.posted.0.lock().unwrap().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, posted).await.expect("a notice");
    }
}

fn checked() -> Checked {
    let health = Arc::new(Health::new(true));
    let posted = Posted::default();
    let mut checks = HealthChecks::new(Arc::clone(&health), Arc::new(posted.clone()));
    checks.set_addresses([Ipv4Addr::LOCALHOST.into()].into());
    Checked { health, posted, checks }
}

#[tokio::test]
async fn a_health_check_responds_like_kube_proxy() {
    let mut checked = checked();
    let port = free_port();
    checked.checks.set(BTreeMap::from([(port, check(2))]));
    let answer = get(port, "/whatever").await;
    assert_eq!(answer.status, 200);
    for header in [
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "x-load-balancing-endpoint-weight: 2",
    ] {
        assert!(answer.headers.contains(header), "{}", answer.headers);
    }
    let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!(answer.body, expected);

    checked.checks.set(BTreeMap::from([(port, check(0))]));
    let answer = get(port, "/").await;
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains("x-load-balancing-endpoint-weight: 0"));
}

#[tokio::test]
async fn a_node_that_does_not_keep_up_fails_its_health_checks() {
    let mut checked = checked();
    let port = free_port();
    checked.checks.set(BTreeMap::from([(port, check(1))]));
    // A node that is being deleted still serves connections.
    checked.health.set_node_eligible(false);
    assert_eq!(get(port, "/").await.status, 200);
    let long_ago = std::time::Instant::now().checked_sub(Duration::from_secs(120));
    checked.health.note_change(long_ago.expect("the machine has been running for two minutes"));
    let answer = get(port, "/").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("\"serviceProxyHealthy\": false"), "{}", answer.body);
}

async fn closed(address: SocketAddr) {
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, closed).await.expect("the port is closed");
}

#[tokio::test]
async fn a_port_that_is_no_longer_needed_is_closed() {
    let mut checked = checked();
    let port = free_port();
    checked.checks.set(BTreeMap::from([(port, check(1))]));
    get(port, "/").await;
    checked.checks.set(BTreeMap::new());
    closed((Ipv4Addr::LOCALHOST, port).into()).await;
}

#[tokio::test]
async fn a_health_check_is_served_on_the_node_addresses_only_and_follows_them() {
    let mut checked = checked();
    let port = free_port();
    let (first, second, v6) =
        (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), Ipv6Addr::LOCALHOST);
    checked.checks.set(BTreeMap::from([(port, check(1))]));
    get(port, "/").await;
    for other in [SocketAddr::from((second, port)), (v6, port).into()] {
        assert!(TcpStream::connect(other).await.is_err(), "{other}");
    }

    checked.checks.set_addresses([second.into(), v6.into()].into());
    for address in [SocketAddr::from((second, port)), (v6, port).into()] {
        assert_eq!(get_from(address, "/").await.status, 200, "{address}");
    }
    closed((first, port).into()).await;

    checked.checks.set_addresses(BTreeSet::new());
    closed((second, port).into()).await;
}

#[tokio::test]
async fn an_address_whose_port_is_in_use_is_reported_and_the_others_are_served() {
    let mut checked = checked();
    let second = IpAddr::from([127, 0, 0, 2]);
    let port = free_port();
    let other = TcpListener::bind((second, port)).await.unwrap();
    checked.checks.set_addresses([Ipv4Addr::LOCALHOST.into(), second].into());
    checked.checks.set(BTreeMap::from([(port, check(1))]));
    assert_eq!(get(port, "/").await.status, 200);
    checked.wait_for_notice().await;
    drop(other);
    assert_eq!(get_from((second, port).into(), "/").await.status, 200);
    let posted = checked.posted.0.lock().unwrap();
    let [notice] = &posted[..] else { panic!("{posted:?}") };
    assert_eq!(notice.reason, NoticeReason::FailedToStartServiceHealthcheck);
    assert_eq!(notice.about, Some(check(1).about));
    assert!(notice.message.contains(&format!("127.0.0.2:{port}")), "{}", notice.message);
}
