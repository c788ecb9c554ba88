//! The BGP speaker of this node: advertises addresses of Services to routers. What it decides is pure, in `lb_bgp`; here
//! are its configuration (`peer`, `peers`, `detection`, `routes`: pure, too), and its sockets (`speaker`, `running`,
//! `wire`, `socket`, `router`, `paths`, `unnumbered`).
//!
//! Untrusted input: while a peer is passive, any machine can open connections to port 179; all but those from
//! configured addresses are closed at once. A configured peer can send anything: at most one message of it is held,
//! and the routes that it announces are counted and discarded.
//!
//! Tests: beside the code, `hostile.rs`, and `tests/tests/peers/bgp.rs` with real routers.

mod detection;
#[cfg(test)]
mod hostile;
mod paths;
mod peer;
mod peers;
mod router;
mod routes;
mod running;
mod socket;
mod speaker;
mod unnumbered;
mod view;
mod wire;

pub use peer::{PasswordSecret, PasswordSource, PeerConfig, PeerLocation};
pub use peers::{ConfiguredPeer, PeerObjects};
pub use routes::{RouteAdvertiser, ServiceRoutes};
pub use speaker::{Speaker, SpeakerCommand, SpeakerCommands, SpeakerStart};
pub use view::{BgpView, PeerView, RouteView};
