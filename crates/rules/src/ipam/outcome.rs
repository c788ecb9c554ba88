//! What became of a Service's request, for its condition.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    Assigned,
    /// No pool admits the Service.
    NoPool,
    /// All addresses of the pools that admit it are in use.
    PoolExhausted,
    /// No pool that admits it contains the requested address.
    NotInPool,
    /// Another Service has the requested address.
    InUse,
    /// Another Service has the address and shares it, but not with this one's ports or policy.
    SharingConflict,
    /// The pools, or the requested addresses, lack an address family.
    FamilyUnavailable,
    /// The request can't be read.
    InvalidRequest,
}

impl Reason {
    pub const ALL: [Self; 8] = [
        Self::Assigned,
        Self::NoPool,
        Self::PoolExhausted,
        Self::NotInPool,
        Self::InUse,
        Self::SharingConflict,
        Self::FamilyUnavailable,
        Self::InvalidRequest,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Assigned => "Assigned",
            Self::NoPool => "NoPool",
            Self::PoolExhausted => "PoolExhausted",
            Self::NotInPool => "NotInPool",
            Self::InUse => "InUse",
            Self::SharingConflict => "SharingConflict",
            Self::FamilyUnavailable => "FamilyUnavailable",
            Self::InvalidRequest => "InvalidRequest",
        }
    }
}

/// The addresses that a Service has, and why it has no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub addresses: Vec<IpAddr>,
    pub reason: Reason,
    /// Names what to do, unless the reason is `Assigned`.
    pub message: String,
    /// The number of its addresses that no pool contains any more.
    pub outside: usize,
}

/// Why an address can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
