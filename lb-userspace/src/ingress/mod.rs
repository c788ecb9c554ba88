//! The Ingress controller: objects → model → the proxy's rules, upstreams and certificates.
//!
//! `model` is pure and contains all rules of Kubernetes. The other modules do the I/O.

pub mod handover;
pub mod model;
pub mod status;
