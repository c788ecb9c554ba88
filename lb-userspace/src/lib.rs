//! The agent: sources → store → model → plan → kernel.
//!
//! `model` and `plan` are pure: they contain all rules of Kubernetes and all decisions about the
//! maps, without I/O. `source` and `kernel` do the I/O.

pub mod agent;
pub mod announce;
mod backoff;
pub mod bfd;
pub mod bgp;
mod burst;
mod bytes;
pub mod cli;
pub mod config;
pub mod controller;
pub mod drops;
mod ending;
pub mod ingress;
pub mod inspect;
pub mod ipam;
pub mod kernel;
pub mod kinds;
pub mod lease;
mod memory;
pub mod model;
mod netlink;
pub mod network;
mod notation;
pub mod notices;
pub mod plan;
pub mod privileges;
pub mod reasons;
pub mod serve;
mod service_manager;
pub mod settings;
pub mod snat_ports;
pub mod source;
mod state_file;
pub mod store;
pub mod trace;
pub mod tunnel_probes;
