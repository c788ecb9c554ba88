//! An announce-only BGP speaker, without I/O.
//!
//! A session, as its peer's connections make it (RFC 4271, section 8.2.2):
//!
//! ```text
//! Idle --start--> Connect --TCP--> OpenSent --OPEN--> OpenConfirm --KEEPALIVE--> Established
//!                  |  ^               |                    |                         |
//!           failed |  | back-off      +--- NOTIFICATION, timeout, closed: Active <---+
//!                  v  |
//!                 Active
//! ```
//!
//! # Invariants
//! - Pure: no I/O and no clock. Time and randomness are parameters.
//! - It knows nothing about Kubernetes and imports no routes: what a peer announces is counted and discarded.
//! - What a peer can make it hold is bounded: one message of at most 4096 octets for each connection.
//!
//! [`wire`] is the codec, [`session`] the state machine, [`table`] what is announced.

pub mod community;
pub mod family;
pub mod route;
pub mod session;
pub mod table;
pub mod wire;

pub use community::{Communities, Community, LargeCommunity};
pub use family::Family;
pub use route::{NextHop, RouteAttributes};
pub use session::BgpSession;
