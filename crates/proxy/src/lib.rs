//! The HTTP proxy: listeners, TLS, and connections to endpoints. It decides nothing about requests: that is
//! `lb_http`'s.
//!
//! Invariants:
//! - A request is served by one snapshot of the configuration. Replacing the snapshot ends no request and no
//!   connection.
//! - No client can take what others need: connections, memory and time of each are bounded.
//! - Threads share no lock that a request takes. `docs/design/http-proxy.md` says what they do share.

mod accept;
pub mod access_log;
mod body;
pub mod certificate;
mod client;
pub mod config;
mod http;
mod incoming;
mod io;
mod limits;
mod listen;
mod message;
pub mod metrics;
mod orders;
mod outgoing;
mod passthrough;
mod proxy;
mod published;
mod routes;
pub mod session_keys;
pub mod settings;
mod spans;
mod stop;
mod thread;
mod tls;
mod tunnel;
mod upstream;
mod worker;

pub use config::{Certificate, ClientCertificates, Config, HostTls, Passthrough};
pub use metrics::Metrics;
pub use proxy::{Proxy, StartError};
pub use session_keys::SessionKeys;
pub use settings::{ProxyLimits, ProxySettings, TraceSettings};
