//! What every process of Millrace has, whatever its task: the agent, the controller, the Ingress proxy.
//!
//! - its life: signals (`ending`), the service manager, the limit of open files
//! - its HTTP servers: a room of `lb_connections` bounds what clients may do, [`start_server`] serves;
//!   `readiness` has the health checks of processes other than the agent
//! - its metrics: of the process itself (`registry`), and of its requests to the API server (`requests`)
//! - notices for people (`notices`), waiting between attempts (`backoff`), and small files for the next start
//!   (`state_file`)
//!
//! # Invariants
//! - No client of a server keeps other clients from being served, least of all local ones (`lb_connections::Room`).
//! - A problem is posted once, and again only if it was fixed in between (`notices`).

pub mod backoff;
mod burst;
#[cfg(test)]
mod connection_tests;
pub mod ending;
mod file_limit;
mod http;
pub mod notices;
pub mod readiness;
mod registry;
mod requests;
pub mod service_manager;
pub mod state_file;

pub use file_limit::raise_file_limit;
pub use http::{HEALTHZ_LIMITS, METRICS_LIMITS, serve_router, start_server};
pub use registry::{VERSION, process_registry};
pub use requests::ClientRequests;
