//! The HTTP proxy: listeners, TLS, and connections to endpoints. It decides nothing about requests: that is
//! `lb_http`'s.
//!
//! Invariants:
//! - A request is served by one snapshot of the configuration. Replacing the snapshot ends no request and no
//!   connection.
//! - No client can take what others need: connections, memory and time of each are bounded.
//! - Threads share no lock that a request takes. `docs/design/http-proxy.md` says what they do share.

pub mod access_log;
pub mod certificate;
pub mod config;
mod listen;
pub mod metrics;
mod proxy;
pub mod settings;

pub use config::{Certificate, ClientCertificates, Config, HostTls};
pub use metrics::Metrics;
pub use proxy::{Proxy, StartError};
pub use settings::{Limits, Settings};
