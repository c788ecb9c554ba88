//! The embedded Kubernetes API: an API server for one machine without a cluster.
//!
//! `storage` keeps the objects, `operations` performs requests, `http` serves clients. All
//! differences between kinds are in `kinds`. The agent watches this API like a cluster's. This
//! crate does not depend on the agent. The tests with real clients are in `tests/api`.

pub mod codec;
mod collector;
pub mod declared;
pub mod failure;
mod first;
mod health_checker;
pub mod http;
pub mod kinds;
pub mod operations;
pub mod patch;
pub mod schema;
pub mod server;
pub mod storage;
mod upkeep;
