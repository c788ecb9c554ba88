//! What happens on a link, and what a participant does about it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::identity::{Id, LinkAddress, Rank};
use super::seal::Keys;

/// What happens.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A datagram came from the link.
    Received(&'a [u8]),
    /// The addresses of this link, and how much this participant wants each. Known since the first
    /// time; before that, it keeps what it held.
    Wanted(BTreeMap<IpAddr, Rank>),
    /// The interface can send and receive, or not, and its link-layer address.
    Interface { usable: bool, link_address: LinkAddress },
    /// A machine was seen to use a watched address.
    Claim { address: IpAddr, by: LinkAddress },
    /// The kernel does not answer for an address as it should.
    Failed(IpAddr),
    /// The participant shall hand over all addresses.
    Leave,
    /// The file with the keys has changed.
    Keys(Keys),
    /// Time has passed. Everything that was received before then, and every claim that was seen,
    /// has been handled.
    Timer,
    /// Time has passed, and more has arrived than could be read or kept.
    Backlog,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// To all participants.
    Send(Vec<u8>),
    /// The kernel answers for the address, for so long.
    Announce {
        address: IpAddr,
        epoch: u32,
        hold: Duration,
    },
    /// It no longer does.
    Withdraw(IpAddr),
    /// Note machines that use the address, from now on.
    Watch(IpAddr),
    Unwatch(IpAddr),
    Transmit(Frame),
    Report(News),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Tells all machines where the address is. With ARP some heed only requests, and some only
    /// replies.
    Announcement { address: IpAddr, reply: bool },
    /// Asks all machines.
    Probe(IpAddr),
    /// Asks one.
    ProbeOf(IpAddr, LinkAddress),
}

/// For logs, Events and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Taken {
        address: IpAddr,
        epoch: u32,
        from: Option<Id>,
        planned: bool,
    },
    Released {
        address: IpAddr,
        to: Option<Id>,
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
    Joined(Id),
    Silent(Id),
    /// Another process sends messages in this participant's name.
    Namesake,
    /// The process did not run for so long.
    Paused(Duration),
    /// All addresses were handed over.
    Left,
}
