//! The BGP speaker of this node: advertises addresses of Services to routers. What a session decides is pure, in
//! `lb_bgp`.
//!
//! - `config`, `peer_objects`, `detection`, `service_advertisement`, `routes`: from objects to peers and routes, without I/O
//! - `io`, `connection`, `router`, `router_advertisement`: sockets and neighbours
//! - `session`: one peer with its connections; `paths`: its BFD session; `run`: the thread; `view`: what commands show
//!
//! # Invariants
//! - While a peer is passive, any machine can open connections to port 179: all but those from configured addresses
//!   are closed at once.
//! - A configured peer can send anything: at most one message of it is held, and the routes that it announces are
//!   counted and discarded.
//! - The thread waits neither for a peer nor for the agent's loop or the API server.
//!
//! Tests: beside the code, `tests.rs`, and `tests/tests/peers/bgp.rs` with real routers.

mod config;
mod connection;
mod detection;
mod io;
mod paths;
mod peer_objects;
mod router;
mod router_advertisement;
mod routes;
mod run;
mod service_advertisement;
mod session;
#[cfg(test)]
mod tests;
mod view;

pub use config::{PasswordSecret, PasswordSource, PeerConfig, PeerLocation};
pub use peer_objects::{ConfiguredPeer, PeerObjects};
pub use routes::{RouteAdvertiser, ServiceRoutes};
pub use run::{Speaker, SpeakerCommand, SpeakerCommands, SpeakerStart};
pub use service_advertisement::ServiceAdvertisement;
pub use view::{BgpView, PeerView, RouteView, ServicePeers};

/// A field of an object, and why it can't be used.
type InvalidField = (&'static str, String);
