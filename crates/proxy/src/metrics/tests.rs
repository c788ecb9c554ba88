use std::time::Duration;

use http::StatusCode;

use super::*;

fn owner(name: &str) -> RouteOwner {
    RouteOwner { namespace: "default".into(), name: name.into() }
}

fn scrape(metrics: &Metrics) -> String {
    let mut registry = Registry::with_prefix("test");
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn workers_are_added_up() {
    let metrics = Metrics::new(10);
    for _ in 0..2 {
        let worker = metrics.add_worker();
        worker.opened(Listener::Https);
        let counters = worker.owner(Some(&owner("web")));
        counters.finished(StatusCode::OK, Duration::from_millis(2), 3, 5);
        counters.failed(UpstreamError::Connect);
    }
    let text = scrape(&metrics);
    for line in [
        "test_connections_total{listener=\"https\"} 2",
        "test_open_connections{listener=\"https\"} 2",
        "test_requests_total{namespace=\"default\",ingress=\"web\",code=\"2xx\"} 2",
        "test_request_duration_seconds_count{namespace=\"default\",ingress=\"web\"} 2",
        "test_request_duration_seconds_bucket{le=\"0.001\",namespace=\"default\",ingress=\"web\"} 0",
        "test_request_duration_seconds_bucket{le=\"0.0025\",namespace=\"default\",ingress=\"web\"} 2",
        "test_sent_body_bytes_total{namespace=\"default\",ingress=\"web\"} 10",
        "test_upstream_errors_total{namespace=\"default\",ingress=\"web\",reason=\"connect\"} 2",
    ] {
        assert!(text.lines().any(|l| l == line), "no line {line} in\n{text}");
    }
}

#[test]
fn owners_beyond_the_limit_share_a_series() {
    let metrics = Metrics::new(1);
    let worker = metrics.add_worker();
    let first = worker.owner(Some(&owner("first")));
    for name in ["second", "third"] {
        let counters = worker.owner(Some(&owner(name)));
        counters.finished(StatusCode::OK, Duration::ZERO, 0, 0);
    }
    let other = "test_requests_total{namespace=\"\",ingress=\"other\",code=\"2xx\"} 2";
    assert!(scrape(&metrics).lines().any(|line| line == other));

    drop(first);
    worker.forget_unused_owners();
    worker.owner(Some(&owner("second"))).finished(StatusCode::OK, Duration::ZERO, 0, 0);
    let own = "test_requests_total{namespace=\"default\",ingress=\"second\",code=\"2xx\"} 1";
    assert!(scrape(&metrics).lines().any(|line| line == own));
}
