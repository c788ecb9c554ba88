//! What became of a Service's request, for its condition.

use std::net::IpAddr;

use super::pool::PoolName;
use crate::model::{PortGrant, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AssignmentReason {
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
    /// A pool of nodes does not list a port of the Service, or nodes need the port.
    PortNotAllowed,
    /// No healthy node is selected by the pool, or none has an endpoint of a Service with the policy Local.
    NoNode,
    /// The pools, or the requested addresses, lack an address family.
    FamilyUnavailable,
    /// The request can't be read.
    InvalidRequest,
}

impl AssignmentReason {
    pub const ALL: [Self; 10] = [
        Self::Assigned,
        Self::NoPool,
        Self::PoolExhausted,
        Self::NotInPool,
        Self::InUse,
        Self::SharingConflict,
        Self::PortNotAllowed,
        Self::NoNode,
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
            Self::PortNotAllowed => "PortNotAllowed",
            Self::NoNode => "NoNode",
            Self::FamilyUnavailable => "FamilyUnavailable",
            Self::InvalidRequest => "InvalidRequest",
        }
    }
}

/// The addresses that a Service has, and why it has no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignmentOutcome {
    pub addresses: Vec<IpAddr>,
    /// If the addresses are those of nodes: all ports of the Service, and whether it has them there.
    pub ports: Vec<PortOutcome>,
    /// Those of the ports that it has, and of which pool.
    pub grant: Option<PortGrant>,
    pub reason: AssignmentReason,
    /// Names what to do, unless the reason is `Assigned`.
    pub message: String,
    /// The number of its addresses that no pool contains any more.
    pub outside: usize,
}

impl AssignmentOutcome {
    /// The Service requests addresses that it can't have, and keeps its ports of nodes meanwhile.
    pub(super) fn wait_for(&mut self, refusal: Option<Refusal>, pool: &PoolName) {
        let Some(refusal) = refusal.filter(|_| self.reason == AssignmentReason::Assigned) else {
            return;
        };
        self.reason = refusal.reason;
        self.message = format!("{}. Until then it keeps ports of nodes of {pool}", refusal.message);
    }
}

/// A port of a Service on the addresses of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOutcome {
    pub protocol: Protocol,
    pub port: u16,
    /// Why the Service does not have it.
    pub refused: Option<AssignmentReason>,
}

/// Why an address can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: AssignmentReason,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: AssignmentReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
