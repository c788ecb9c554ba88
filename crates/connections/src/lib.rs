//! What the servers of Millrace have in common: the accept loop ([`accept_connections`]), and for those with few
//! connections also a [`Room`], which decides which connections are admitted and which are closed for others. For
//! clients of servers with unknown certificates there is [`AnyCertificate`].
//!
//! Invariants:
//! - An accept loop never waits for a connection, and no error ends it.
//! - A connection of a room always has a deadline, until it leaves the room.

mod accept;
mod admission;
mod any_certificate;
mod room;

pub use accept::accept_connections;
pub use admission::{AdmissionLimits, PeerKey};
pub use any_certificate::AnyCertificate;
pub use room::{IsLocal, Listen, PendingResponse, Permit, Room, Tcp, accept_all, is_local};
