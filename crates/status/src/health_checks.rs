//! Health check node ports: a load balancer outside the cluster asks each node whether it serves
//! a Service whose external policy is Local. The responses are those of kube-proxy.
//!
//! Invariant: the ports are open exactly on the addresses on which NodePorts are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lb_connections::{AdmissionLimits, Room};
use lb_process::notices::{Notice, NoticeObject, NoticeReason, Notices};
use lb_process::serve_router;
use lb_rules::model::ServiceName;
use tokio::task::JoinHandle;

use super::health::Health;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Limits of all health check node ports together: a load balancer may query all of them at once,
/// from one address.
const LIMITS: AdmissionLimits = AdmissionLimits::new(64, 512, 256);

/// What one port reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub service: ServiceName,
    /// The object that notices refer to.
    pub about: NoticeObject,
    pub local_endpoints: usize,
}

/// All ports, on all addresses. Dropping it closes them.
pub struct HealthChecks {
    health: Arc<Health>,
    notices: Arc<dyn Notices>,
    room: Arc<Room>,
    addresses: BTreeSet<IpAddr>,
    ports: BTreeMap<u16, HealthCheckPort>,
}

struct HealthCheckPort {
    check: Arc<Mutex<Check>>,
    servers: BTreeMap<IpAddr, HealthCheckServer>,
}

struct HealthCheckServer(JoinHandle<()>);

impl Drop for HealthCheckServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Clone)]
struct HealthCheckContext {
    check: Arc<Mutex<Check>>,
    health: Arc<Health>,
}

impl HealthChecks {
    pub fn new(health: Arc<Health>, notices: Arc<dyn Notices>) -> Self {
        Self {
            health,
            notices,
            room: Room::new(LIMITS),
            addresses: BTreeSet::new(),
            ports: BTreeMap::new(),
        }
    }

    /// Serves exactly these ports from now on.
    pub fn set(&mut self, checks: BTreeMap<u16, Check>) {
        self.ports.retain(|port, _| checks.contains_key(port));
        for (port, check) in checks {
            match self.ports.get(&port) {
                Some(port) => *lock(&port.check) = check,
                None => {
                    let check = Arc::new(Mutex::new(check));
                    self.ports.insert(port, HealthCheckPort { check, servers: BTreeMap::new() });
                }
            }
        }
        self.serve();
    }

    /// Serves on exactly these addresses of the node from now on.
    pub fn set_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.addresses = addresses;
        self.serve();
    }

    /// Starts missing servers, and stops those on other addresses. The others keep running.
    fn serve(&mut self) {
        let mut ports = std::mem::take(&mut self.ports);
        for (&number, HealthCheckPort { check, servers }) in &mut ports {
            servers.retain(|address, _| self.addresses.contains(address));
            for &ip in &self.addresses {
                let start = || self.start(SocketAddr::new(ip, number), check);
                servers.entry(ip).or_insert_with(start);
            }
        }
        self.ports = ports;
    }

    fn start(&self, address: SocketAddr, check: &Arc<Mutex<Check>>) -> HealthCheckServer {
        let shared =
            HealthCheckContext { check: Arc::clone(check), health: Arc::clone(&self.health) };
        let complain = {
            let (check, notices) = (Arc::clone(check), Arc::clone(&self.notices));
            move |error: &std::io::Error| {
                let about = Some(lock(&check).about.clone());
                let port = address.port();
                let message = format!(
                    "spec.healthCheckNodePort: port {port} cannot be bound on {address}: {error}; \
                     retrying. Load balancers that ask there consider this node unhealthy"
                );
                let reason = NoticeReason::FailedToStartServiceHealthcheck;
                notices.post(Notice { about, reason, message });
            }
        };
        // For every path.
        let router = Router::new().fallback(respond).with_state(shared);
        HealthCheckServer(tokio::spawn(serve_router(
            address,
            router,
            Arc::clone(&self.room),
            complain,
        )))
    }
}

async fn respond(State(shared): State<HealthCheckContext>) -> Response {
    let check = lock(&shared.check).clone();
    let healthy = shared.health.report(Instant::now()).is_serving();
    let Check { service, local_endpoints, .. } = check;
    let status = if healthy && local_endpoints > 0 {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    // Names in the API contain no characters that JSON escapes.
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
