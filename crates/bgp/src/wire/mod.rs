//! The messages of BGP.
//!
//! Invariants:
//! - Parsing never panics, and reads at most one message of [`MAX_MESSAGE_OCTETS`].
//! - What is written can be read by a peer that knows RFC 4271, 4760 and the capabilities it announced; no message is
//!   longer than [`MAX_MESSAGE_OCTETS`].
//! - A received UPDATE is never an error of the session: see [`received`].
//!
//! `crates/bgp/tests` compares it with two other implementations; `fuzz/src/bgp` feeds it random messages.

mod attributes;
mod header;
pub mod message;
pub mod notification;
pub mod open;
mod prefix;
mod reader;
pub mod received;
pub mod refresh;
#[cfg(test)]
mod tests;
pub mod update;

pub use attributes::AttributeForm;
pub use header::{MAX_MESSAGE_OCTETS, MessageKind, append_keepalive};
pub use notification::{Notification, Reason};
pub use open::{Capabilities, GracefulRestart, OpenMessage, refuse_missing_families};
pub use received::ReceivedUpdate;
