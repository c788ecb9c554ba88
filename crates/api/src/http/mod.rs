//! The API over HTTPS: client authentication, limits, and the form of responses.
//!
//! Invariants:
//! - No request is served without a client certificate of the server's own authority, which is
//!   registered: the handshake fails, or the connection is closed. Within two seconds after it is
//!   revoked, its connections are closed, too.
//! - A request is checked against the role in the certificate (`roles`) before its body is read.
//! - No client can make others wait. Handshakes, headers, bodies and stalled reading have time
//!   limits. Handshakes never wait for each other (`lb_connections::Room`). What one user may hold of
//!   connections, requests, watches and memory is limited, and room for the agent remains
//!   (`shares`). Expensive requests take turns (`turns`), and run on threads of their own.

mod connection;
mod discovery;
mod health;
mod identity;
mod issued;
pub mod kubeconfig;
mod limits;
mod listing;
mod openapi;
mod path;
mod pki;
mod private_file;
mod respond;
mod reviews;
mod roles;
mod secrets;
mod service;
mod shares;
mod turns;

pub use connection::serve_api;
pub use identity::ClientIdentity;
pub use issued::{IssuedCertificate, IssuedCertificates};
pub use limits::ApiLimits;
pub use pki::{CLIENT_DAYS, CertificateAuthority};
pub use private_file::write_private;
pub use roles::ClientRole;
pub use service::ApiService;
