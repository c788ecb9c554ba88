//! The API over HTTPS: who may connect, how much they may ask for, and how it is said.
//!
//! Invariants:
//! - Nobody gets an answer without a client certificate of our own authority: the handshake fails.
//! - No client can keep others waiting: headers, bodies, handshakes and stalled reading have their
//!   time, requests and watches their number, and watches do not count as requests.

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
