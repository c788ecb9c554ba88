//! Health check node ports: a load balancer outside the cluster asks each node whether it serves
//! a Service whose external policy is Local. A server per port, with kube-proxy's answers.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinHandle;

use super::accept::Room;
use super::admission::Limits;
use super::health::Health;
use super::http;
use crate::model::ServiceName;
use crate::notices::{About, Notice, Notices, Reason};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Of all health check node ports together: a load balancer may ask all of them at once, from one
/// address.
const LIMITS: Limits = Limits::new(64, 512, 256);

/// What is said at one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub service: ServiceName,
    /// For complaints.
    pub about: About,
    pub local_endpoints: usize,
}

/// The servers there are. Dropped, they end.
pub struct HealthChecks {
    health: Arc<Health>,
    notices: Arc<dyn Notices>,
    room: Arc<Room>,
    servers: BTreeMap<u16, Server>,
}

struct Server {
    check: Arc<Mutex<Check>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Shared {
    check: Arc<Mutex<Check>>,
    health: Arc<Health>,
}

impl HealthChecks {
    pub fn new(health: Arc<Health>, notices: Arc<dyn Notices>) -> Self {
        Self { health, notices, room: Room::new(LIMITS), servers: BTreeMap::new() }
    }

    /// Serves these ports from now on, and no others.
    pub fn set(&mut self, checks: BTreeMap<u16, Check>) {
        self.servers.retain(|port, _| checks.contains_key(port));
        for (port, check) in checks {
            match self.servers.get(&port) {
                Some(server) => *lock(&server.check) = check,
                None => drop(self.servers.insert(port, self.start(port, check))),
            }
        }
    }

    fn start(&self, port: u16, check: Check) -> Server {
        let check = Arc::new(Mutex::new(check));
        let shared = Shared { check: Arc::clone(&check), health: Arc::clone(&self.health) };
        let complain = {
            let (check, notices) = (Arc::clone(&check), Arc::clone(&self.notices));
            move |error: &std::io::Error| {
                let about = Some(lock(&check).about.clone());
                let message = format!(
                    "spec.healthCheckNodePort: port {port} of this node can't be bound: \
                     {error}; trying again. Load balancers take this node for unhealthy"
                );
                let reason = Reason::FailedToStartServiceHealthcheck;
                notices.post(Notice { about, reason, message });
            }
        };
        // Whatever the path.
        let router = Router::new().fallback(answer).with_state(shared);
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let server = http::serve(address, router, Arc::clone(&self.room), complain);
        Server { check, task: tokio::spawn(server) }
    }
}

async fn answer(State(shared): State<Shared>) -> Response {
    let check = lock(&shared.check).clone();
    let healthy = shared.health.report(Instant::now()).is_serving();
    let Check { service, local_endpoints, .. } = check;
    let status = if healthy && local_endpoints > 0 {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    // Names of the API hold nothing that JSON would escape.
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}",
        service.namespace, service.name
    );
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (WEIGHT, local_endpoints.to_string()),
    ];
    (status, headers, body).into_response()
}

fn lock(check: &Mutex<Check>) -> MutexGuard<'_, Check> {
    check.lock().unwrap_or_else(PoisonError::into_inner)
}
