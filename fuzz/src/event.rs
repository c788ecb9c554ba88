//! What happens to the data plane.

use crate::{Hook, TableChange};

#[derive(Clone, Debug)]
pub enum FuzzEvent {
    Change(TableChange),
    Packet(Hook, Vec<u8>),
    /// A reply to the last translated packet, or its sender's next packet.
    Reply(Reply),
}

/// A reply to a packet, or its sender's next packet.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// From the same sender, instead of from the receiver.
    pub again: bool,
    /// Ignored for UDP; for SCTP they select a chunk of the same meaning.
    pub tcp_flags: u8,
    /// Added to TCP's sequence and acknowledgement numbers, or to SCTP's verification tag.
    pub skew: u32,
}
