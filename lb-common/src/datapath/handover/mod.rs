//! What a stage gives the next one.
//!
//! A [`Verdict`](super::Verdict) names a stage only by a constructor of [`NextStage`], which takes what that stage
//! needs. Nothing else can write a [`Handover`], and nothing reads one but [`stage`](super::stage),
//! which passes it to the stage's function as an argument. Flows and decisions are in the draft: their
//! proofs, [`DraftedFlow`] and [`DraftedDecision`], come from what wrote them.

mod next_stage;

pub use next_stage::{DraftedDecision, DraftedFlow, NextStage, given_rejection};
pub(crate) use next_stage::{
    given_alone, given_arrival, given_encapsulation, given_location, given_redispatch,
    given_unserved,
};

use super::arrival::Arrival;
use super::carried::Encapsulation;
use super::function::reason_in;
use super::redispatch::Redispatch;
use super::rejection::Rejection;
use crate::conntrack::Location;
use crate::layout::Reason;

/// The memory of what a stage is given, apart from the draft. One packet's at a time.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Handover {
    /// Of [`NextStage::reject`].
    rejection: Rejection,
    /// Of [`NextStage::open`].
    alone: Alone,
    /// Of [`NextStage::open`] and [`NextStage::reopen`].
    redispatch: Redispatch,
    /// Of [`NextStage::redispatch`].
    location: Location,
    /// Of all stages whose packet may have come through a tunnel.
    arrival: Arrival,
    encapsulation: Encapsulation,
    /// Of [`NextStage::unserved`].
    unserved: Unserved,
}

/// What is known of a packet that no port of a Service takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unserved {
    /// The [`Reason`](crate::layout::Reason) for which it passes, unless its address is one of load balancers.
    reason: u32,
    /// The protocol of a packet to an unknown port.
    protocol: u32,
}

impl Unserved {
    #[inline(always)]
    pub(crate) fn reason(self) -> Reason {
        reason_in(self.reason)
    }

    #[inline(always)]
    pub(crate) fn protocol(self) -> u8 {
        self.protocol as u8
    }
}

/// Whether the lookup for a packet has found no other flow of its client's address and port. A number, not
/// a `bool`: the verifier would follow the stage once for each value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone(u64);

impl Alone {
    #[inline(always)]
    pub(crate) fn is_alone(self) -> bool {
        self.0 != 0
    }
}
