//! Bidirectional forwarding detection (BFD) with routers, for the BGP speaker. Its decisions are
//! pure, in `lb_bfd`; here are its sockets, and its entries in the kernel, which answers instead.
//!
//! - `config`: what a session is between; `io`: the sockets; `view`: what commands show
//! - `session`: one session with its socket and its entry in the kernel; `run`: all sessions of this node
//!
//! # Invariants
//! - Packets to ports 3784 and 4784 may come from any address. Those of other addresses than the sessions' are
//!   discarded, as are those that have crossed more routers than a session allows.
//! - A peer can send anything: only the fields of its last packet are kept, and at most `MAX_PACKETS_AT_ONCE` packets
//!   are read at once.
//!
//! Tests: beside the code, and `tests/tests/peers/bfd.rs` with real routers.

mod config;
mod io;
mod run;
mod session;
mod view;

pub use config::{HopLimit, MonitoredEnds, WantedSession};
pub use run::PathMonitor;
pub use view::BfdView;
