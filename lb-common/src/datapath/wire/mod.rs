//! Packets as bytes: finding, reading and writing headers. It checks the form of packets, and
//! decides nothing else.

pub mod arp;
pub mod describe;
pub mod link;
pub mod made;
pub mod ndp;
pub mod outer;
pub mod packet;
pub mod parse;
