//! Assigns addresses to Services of type LoadBalancer: pools and Services → `ipam` → status.
//!
//! - `config`: the options; `run`: the process, its Lease and its writes
//! - `state`: what is to be written, without I/O; `status`: the patches of statuses
//! - `manifests`: addresses for Services from files; `tunnel_key`: the Secret of the tunnels
//!
//! ```text
//! standby --gets the Lease--> handover --latest Services read--> leader (writes)
//!    ^                            |                                |
//!    +------ loses the Lease -----+--------------------------------+
//! ```
//!
//! # Invariants
//! - Only the holder of a Lease writes, only what differs, and nothing while nothing changes.
//! - An API server that is away delays new addresses and nothing else. No finalizer keeps a Service from being deleted.
//! - What another controller wrote to a Service stays, unless the address is in a pool of this one.

mod config;
mod manifests;
mod metrics;
mod run;
mod state;
mod status;
mod tunnel_key;
mod unread_kinds;

pub use config::ControllerOptions;
pub use manifests::AssigningSource;
pub use metrics::AssignmentMetrics;
pub use run::{run_controller, start_controller};
