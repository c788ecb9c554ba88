//! The inputs of an election on a link, and its effects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::identity::{CandidateRank, LinkAddress, ParticipantId};
use super::seal::SealKeys;

/// What happened.
#[derive(Clone, Debug)]
pub enum LinkInput<'a> {
    /// A datagram came from the link.
    Received(&'a [u8]),
    /// The addresses of this link, and this participant's rank as a candidate for each. Until the
    /// first such input, the participant keeps the addresses that the kernel answers for.
    Wanted(BTreeMap<IpAddr, CandidateRank>),
    /// Whether the interface can send and receive, and its link-layer address.
    Interface { usable: bool, link_address: LinkAddress },
    /// A machine was seen to use a watched address.
    Claim { address: IpAddr, by: LinkAddress },
    /// The kernel does not answer for an address as it should.
    Failed(IpAddr),
    /// The agent shuts down: hand over all addresses.
    Leave,
    /// The file with the keys has changed.
    Keys(SealKeys),
    /// Time has passed. Everything that was received before then, and every claim that was seen,
    /// has been handled.
    Timer,
    /// Time has passed, and more has arrived than could be read or kept.
    Backlog,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEffect {
    /// Send this message to all participants.
    Send(Vec<u8>),
    /// Make the kernel answer for the address, for the duration `hold`.
    Announce {
        address: IpAddr,
        epoch: u32,
        hold: Duration,
    },
    /// Make the kernel stop answering for the address.
    Withdraw(IpAddr),
    /// Another participant may have held the address, too, and has given it up: whoever follows the last one that took
    /// it has to know that it is held here.
    StillHeld(IpAddr),
    /// Report other machines that use the address, from now on.
    Watch(IpAddr),
    Unwatch(IpAddr),
    Transmit(LinkFrame),
    Report(ElectionEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFrame {
    /// A gratuitous frame: announces this node's link-layer address for the address. Some hosts
    /// heed only ARP requests, and some only ARP replies.
    Announcement { address: IpAddr, reply: bool },
    /// A probe to all machines.
    Probe(IpAddr),
    /// A probe to one machine.
    ProbeOf(IpAddr, LinkAddress),
}

/// For logs, Events and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionEvent {
    Taken {
        address: IpAddr,
        epoch: u32,
        from: Option<ParticipantId>,
        planned: bool,
    },
    Released {
        address: IpAddr,
        to: Option<ParticipantId>,
    },
    /// Another machine uses the address, so it is not announced.
    InUse {
        address: IpAddr,
        by: LinkAddress,
    },
    /// Another machine uses an announced address.
    Disputed {
        address: IpAddr,
        by: LinkAddress,
    },
    Joined(ParticipantId),
    Silent(ParticipantId),
    /// Another process sends messages under this participant's name.
    Namesake,
    /// Another machine takes part under this participant's name.
    SameName {
        by: LinkAddress,
    },
    /// The process did not run for this long.
    Paused(Duration),
    /// All addresses were handed over.
    Left,
}
