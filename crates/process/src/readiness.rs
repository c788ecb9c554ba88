//! Health checks and metrics over HTTP, of a process that is not the agent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::notices::Notices;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lb_waits::Waits;
use serde_json::json;

use crate::http::{HEALTHZ_LIMITS, METRICS_LIMITS, start_server};

/// How often the process reports that its loop runs.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A process that is silent for longer is stuck.
const MAX_BEAT_SILENCE: Duration = Duration::from_secs(60);

/// The metrics of a process.
pub trait MetricsSource: Send + Sync {
    /// All metrics in the text format of OpenMetrics.
    fn encode(&self) -> String;

    fn set_ready(&self, is_ready: bool);
}

/// Written by the process's loop, read by servers.
pub struct Readiness {
    ready: AtomicBool,
    beat: Mutex<Instant>,
    metrics: Arc<dyn MetricsSource>,
}

/// A listen address, and the setting that has it.
pub(crate) type ListenSetting = (Option<SocketAddr>, &'static str);

impl Readiness {
    pub fn new(metrics: Arc<dyn MetricsSource>) -> Self {
        Self { ready: AtomicBool::new(false), beat: Mutex::new(Instant::now()), metrics }
    }

    /// Whether all objects are known, the process does its work, and it is not ending.
    pub fn set_ready(&self, is_ready: bool) {
        self.ready.store(is_ready, Ordering::Relaxed);
        self.metrics.set_ready(is_ready);
    }

    /// The loop runs.
    pub fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn is_alive(&self, now: Instant) -> bool {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(beat) < MAX_BEAT_SILENCE
    }
}

/// Starts the servers.
pub fn start_health_servers(
    healthz: ListenSetting,
    metrics: ListenSetting,
    health: &Arc<Readiness>,
    notices: &Arc<dyn Notices>,
) {
    tokio::spawn(Waits::of_process().log());
    let checks = Router::new()
        .route("/healthz", get(livez))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(Arc::clone(health));
    start_server(healthz.0, healthz.1, checks, HEALTHZ_LIMITS, notices);
    let scrapes =
        Router::new().route("/metrics", get(scrape)).with_state(Arc::clone(&health.metrics));
    start_server(metrics.0, metrics.1, scrapes, METRICS_LIMITS, notices);
}

/// Waiting for a cluster's first objects is no reason to restart the process.
async fn livez(State(health): State<Arc<Readiness>>) -> Response {
    respond(health.is_alive(Instant::now()), &health)
}

async fn readyz(State(health): State<Arc<Readiness>>) -> Response {
    respond(health.is_ready() && health.is_alive(Instant::now()), &health)
}

fn respond(is_healthy: bool, health: &Readiness) -> Response {
    let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let alive = health.is_alive(Instant::now());
    let waits = Waits::of_process().long(Instant::now());
    let mut body = json!({"healthy": is_healthy, "alive": alive, "ready": health.is_ready()});
    if !waits.is_empty() {
        body["waiting"] = waits.iter().map(ToString::to_string).collect();
    }
    (status, headers, body.to_string()).into_response()
}

async fn scrape(State(metrics): State<Arc<dyn MetricsSource>>) -> Response {
    // Thousands of Ingresses have many series.
    match tokio::task::spawn_blocking(move || metrics.encode()).await {
        Ok(text) => {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_silent_for_long_is_not_alive() {
        struct None;
        impl MetricsSource for None {
            fn encode(&self) -> String {
                String::new()
            }

            fn set_ready(&self, _: bool) {}
        }
        let health = Readiness::new(Arc::new(None));
        assert!(!health.is_ready());
        let now = Instant::now();
        assert!(health.is_alive(now + MAX_BEAT_SILENCE / 2));
        assert!(!health.is_alive(now + 2 * MAX_BEAT_SILENCE));
    }
}
