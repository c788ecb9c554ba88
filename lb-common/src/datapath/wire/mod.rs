//! Packets as bytes: where their headers are, what they say, and how headers of our own are written.
//!
//! Nothing is decided here but shape.

pub mod describe;
pub mod link;
pub mod made;
pub mod outer;
pub mod packet;
pub mod parse;
