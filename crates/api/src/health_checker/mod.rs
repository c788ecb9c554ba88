//! Probes endpoints and updates `ready` in the EndpointSlices that ask for it. Without a cluster
//! nothing else checks backends.
//!
//! A slice asks with annotations. All ports of an endpoint must respond.
//!
//! - `config`: the annotations, and when results make an endpoint ready or unready, without I/O
//! - `io`: one probe; `slice`: the probes and writes of one slice; `run`: a task for each slice
//!
//! ```text
//! ready --`fall` failures in a row of one port--> unready --`rise` successes in a row of all ports--> ready
//! ```
//!
//! # Invariants
//! - Each endpoint is probed on a schedule of its own, spread over the interval and jittered. Dead
//!   endpoints delay the probes of others only when `MAX_CONCURRENT_PROBES` of them are waited for at the same
//!   time.
//! - However many endpoints change, a slice is written at most `MAX_WRITES_PER_INTERVAL` times in an interval.

mod config;
mod io;
mod run;
#[cfg(test)]
mod servers;
mod slice;

pub use run::run_health_checker;
