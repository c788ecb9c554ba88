//! The state of one address on one link, as this participant keeps it.

use super::identity::{LinkAddress, ParticipantId};
use super::pacing::FramePacing;
use super::timing::Time;

/// An address that the kernel answers for when the process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedAddress {
    pub address: std::net::IpAddr,
    pub epoch: u32,
}

/// The state of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// Another participant holds it, or should.
    Elsewhere,
    /// Asking whether a machine uses it.
    Probing(AddressProbe),
    /// The kernel of another node answers for it, although that node is silent or does not claim
    /// to hold it. Asked again later.
    Answered {
        again: Time,
    },
    /// Another machine uses it, or the kernel refused it.
    Blocked {
        by: Option<LinkAddress>,
        until: Time,
    },
    Here(HeldAddress),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressProbe {
    pub of: ProbeTarget,
    pub sent: u32,
    pub next: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// All machines.
    Everyone,
    /// The kernel of a silent participant.
    Silent { id: ParticipantId, link_address: LinkAddress },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAddress {
    pub epoch: u32,
    pub since: Time,
    /// Until then, another machine that uses the address counts as its earlier user, and gets it.
    pub yields_until: Time,
    /// When the kernel's deadline is written next.
    pub extend: Time,
    pub pacing: FramePacing,
    /// The other participant that currently claims the address too, but has less right to it.
    pub rival: Option<ParticipantId>,
    pub defended: Option<Time>,
    /// When this participant stopped being a candidate.
    pub leaving: Option<Time>,
}

impl AddressState {
    pub fn holding(&self) -> Option<&HeldAddress> {
        match self {
            Self::Here(holding) => Some(holding),
            _ => None,
        }
    }

    /// Whether other machines' use of the address matters.
    pub fn is_watched(&self) -> bool {
        matches!(self, Self::Here(_) | Self::Probing(_))
    }
}
