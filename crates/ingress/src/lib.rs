//! The Ingress proxy as a process: objects → [`lb_ingress_rules`] → `lb_proxy`.
//!
//! - `config`: the options; `run`: the process, from reading the objects to the end
//! - `controller`: takes in events, and gives the proxy its configuration
//! - `status`: writes addresses into Ingresses, if this process holds the Lease
//! - `names`, `certificates`, `session_keys`: what the proxy needs beside objects; `access_log`, `spans`: what it records
//! - `listeners`, `parent`, `handover`, `control`: sockets from systemd, from the agent, and for a successor
//! - `offline`: the same decisions for commands, without a process
//!
//! ```text
//! reading objects --all known--> opening ports --> serving --a successor serves--> draining --> end
//!                                (or taken over from a predecessor)   a signal, the parent's end ^
//! ```
//!
//! # Invariants
//! - An API server that is unavailable, slow or faulty does not affect traffic.
//! - The ports are opened only when all objects are known: no request is refused because its rule is still unread.

pub mod access_log;
mod certificates;
mod config;
pub mod control;
mod controller;
pub mod handover;
pub mod listeners;
mod metrics;
mod names;
pub mod offline;
pub mod parent;
mod run;
mod session_keys;
mod spans;
pub mod status;

pub use config::{IngressOptions, ObjectOrigin, TracingOptions};
pub use run::run_ingress;
