//! The API over HTTPS: client authentication, limits, and the form of responses.
//!
//! Invariants:
//! - No request is served without a client certificate of the server's own authority: the handshake
//!   fails.
//! - No client can make others wait: headers, bodies, handshakes and stalled reading have time
//!   limits, requests and watches have separate limits of their number.

mod connection;
mod discovery;
mod kubeconfig;
mod openapi;
mod path;
mod pki;
mod respond;
mod service;

pub use connection::{Limits, serve};
pub use kubeconfig::write as write_kubeconfig;
pub use pki::Authority;
pub use service::Service;
