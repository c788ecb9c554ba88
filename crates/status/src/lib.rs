//! What the agent says about itself: its health and metrics over HTTP, its report for `millrace status`, and for load
//! balancers outside the cluster whether this node serves a Service (`health_checks`).
//!
//! # Invariants
//! - Nothing here delays the agent. Servers run concurrently and read what it shares. Only the history of slots is asked
//!   of its loop (`exchange` of the agent), once a second at most.
//! - No client keeps other clients from being served, least of all local ones (`lb_connections::Room`).

mod announcements;
mod bfd;
mod bgp;
mod health;
mod health_checks;
mod metrics;
mod report;
mod traffic;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lb_process::notices::Notices;
use lb_process::{HEALTHZ_LIMITS, METRICS_LIMITS, start_server};

pub use announcements::AnnouncementMetrics;
pub use bfd::BfdMetrics;
pub use bgp::BgpMetrics;
pub use health::Health;
pub use health_checks::{Check, HealthChecks};
pub use metrics::{Changed, Metrics, Usage};
pub use report::{AgentReport, Condition, Reporter, ask_agent, report_address};
pub use traffic::{Catalog, Counters, DEFAULT_METRICS_MAX_OBJECTS, FlowTable};

/// Listen addresses; `None`: no server.
#[derive(Clone, Debug)]
pub struct StatusAddresses {
    pub healthz: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
}

#[derive(Clone)]
struct ServerContext {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

/// Starts the servers; `for_agents` is served on the port for health. A port that cannot be bound is
/// reported, and tried again: the agent works without it.
pub fn start_servers(
    addresses: &StatusAddresses,
    health: &Arc<Health>,
    metrics: &Arc<Metrics>,
    for_agents: Router,
    notices: &Arc<dyn Notices>,
) {
    let shared = ServerContext { health: Arc::clone(health), metrics: Arc::clone(metrics) };
    let health = Router::new().route("/healthz", get(healthz)).route("/livez", get(livez));
    let health = health.with_state(shared.clone()).merge(for_agents);
    let metrics = metrics_routes(shared);
    let servers = [
        (addresses.healthz, "--healthz-bind-address", health, HEALTHZ_LIMITS),
        (addresses.metrics, "--metrics-bind-address", metrics, METRICS_LIMITS),
    ];
    for (address, option, router, limits) in servers {
        start_server(address, option, router, limits, notices);
    }
}

async fn healthz(State(shared): State<ServerContext>) -> Response {
    let report = shared.health.report(Instant::now());
    shared.metrics.count_healthz(report.healthz());
    respond(report.healthz(), report.to_json(true))
}

async fn livez(State(shared): State<ServerContext>) -> Response {
    let report = shared.health.report(Instant::now());
    shared.metrics.count_livez(report.livez());
    respond(report.livez(), report.to_json(false))
}

fn metrics_routes(shared: ServerContext) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/proxyMode", get(proxy_mode))
        .with_state(shared)
}

/// As kube-proxy answers, in plain text. Tools ask for it, some only to see that a proxy is there.
async fn proxy_mode() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, "ebpf").into_response()
}

fn respond(healthy: bool, body: String) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, headers, body).into_response()
}

async fn metrics_text(State(shared): State<ServerContext>) -> Response {
    // Reading the counters can take long if there are many.
    let text = tokio::task::spawn_blocking(move || shared.metrics.encode()).await;
    match text {
        Ok(text) => {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
