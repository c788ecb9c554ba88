//! The embedded Kubernetes API, for one machine without a cluster.
//!
//! `storage` keeps objects, `operations` does what clients ask, `http` speaks to them; what
//! differs from kind to kind is in `kinds`, and nowhere else. The agent watches this API as it
//! would watch a cluster's: it can't tell them apart.

pub mod codec;
mod collector;
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
