//! The HTTP proxy: listeners, TLS, and connections to endpoints. It decides nothing about requests: that is
//! `lb_http`'s.
//!
//! Invariants:
//! - A request is served by one snapshot of the configuration. Replacing the snapshot ends no request and no
//!   connection.
//! - No client can take what others need: connections, memory and time of each are bounded.

pub mod config;

pub use config::{Certificate, ClientCertificates, Config, HostTls};
