//! Bidirectional forwarding detection (RFC 5880) in asynchronous mode, without I/O.
//!
//! ```text
//! Down --peer is Down--> Init --peer is Init or Up--> Up --peer is Down, or detection time--> Down
//! Down --peer is Init--> Up
//! any  --ended deliberately--> AdminDown
//! ```
//!
//! # Invariants
//! - Pure: no I/O and no clock. Time and randomness are parameters.
//! - It knows neither addresses nor Kubernetes: the caller decides from which addresses packets are
//!   accepted (RFC 5881 and 5883).
//! - What a peer can make it hold is bounded: the fields of its last packet.
//!
//! [`packet`] is the codec, [`session`] the state machine. Once both sides have agreed on their
//! intervals, each packet of the peer is the same, and so is the answer: a program in the kernel can
//! send it ([`session::BfdEffect::Reflect`]). The session then sends nothing by itself, and neither a
//! busy machine nor a restart of the process is taken for a broken path.

pub mod packet;
pub mod session;

pub use packet::{BfdState, ControlPacket, Diagnostic};
pub use session::{BfdConfig, BfdStateMachine};
