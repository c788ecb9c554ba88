//! What a stage gives the next one.
//!
//! A [`Verdict`](super::Verdict) names a stage only by a constructor of [`NextStage`], which takes what that stage
//! needs. Nothing else can write a [`Handover`], and nothing reads one but [`stage`](super::stage),
//! which passes it to the stage's function as an argument. Flows and decisions are in the draft: their
//! proofs, [`DraftedFlow`] and [`DraftedDecision`], come from what wrote them.

mod next_stage;

pub use next_stage::{DraftedDecision, DraftedFlow, NextStage, given_rejection};
pub(crate) use next_stage::{given_alone, given_arrival, given_encapsulation};

use super::arrival::Arrival;
use super::carried::Encapsulation;
use super::rejection::Rejection;

/// The memory of what a stage is given, apart from the draft. One packet's at a time.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Handover {
    /// Of [`NextStage::reject`].
    rejection: Rejection,
    /// Of [`NextStage::open`].
    alone: Alone,
    /// Of all stages whose packet may have come through a tunnel.
    arrival: Arrival,
    encapsulation: Encapsulation,
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
