//! Sessions of bidirectional forwarding detection (BFD) whose packets the data plane answers.

use super::Peer;
use crate::header::Bfd;

/// A session; the key is this node's discriminator. Addresses of IPv4 are IPv4-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdSession {
    /// In nanoseconds of CLOCK_BOOTTIME. Afterwards nothing is answered: the agent has ended.
    pub deadline: u64,
    pub peer: Peer,
    pub local: Peer,
    /// What the peer sends; also with the poll bit.
    pub expected: Bfd,
    pub answer: Bfd,
    /// The only interface on which its packets arrive; 0: any.
    pub device: u32,
    /// Of the answers.
    pub source_port: u16,
    /// Of the packets, and of the answers: by it, sessions over one hop and over several differ.
    pub destination_port: u16,
    /// A packet that has crossed more routers is not from the peer.
    pub min_hop_limit: u8,
    pub reserved: [u8; 7],
}

/// When a packet of the session was answered last, in nanoseconds of CLOCK_BOOTTIME, and how often.
/// The agent adds the entry before the session's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BfdHeard {
    pub time: u64,
    pub answers: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<BfdSession>() == 104);
    assert!(offset_of!(BfdSession, expected) == 40);
    assert!(offset_of!(BfdSession, device) == 88);
    assert!(size_of::<BfdHeard>() == 16);
};
