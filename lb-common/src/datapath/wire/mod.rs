//! Packets as bytes: finding, reading and writing headers. It checks the form of packets, and
//! decides nothing else.

pub mod describe;
pub mod link;
pub mod made;
pub mod outer;
pub mod packet;
pub mod parse;
