//! Packets as bytes: where headers are, what they contain, and how generated headers are written.
//!
//! Contains no policy, only formats.

pub mod describe;
pub mod link;
pub mod made;
pub mod outer;
pub mod packet;
pub mod parse;
