//! The stage in which a packet continues, and what it is given.

use super::{Alone, Handover, Unserved};
use crate::conntrack::Location;
use crate::datapath::arrival::Arrival;
use crate::datapath::carried::Encapsulation;
use crate::datapath::redispatch::Redispatch;
use crate::datapath::rejection::Rejection;
use crate::datapath::tables::{Counters, Scratch};
use crate::datapath::verdict::{Stage, Verdict, drop_for};
use crate::layout::Reason;
use crate::verifier::rarely;

/// The stage in which a packet continues, and which has been given what it needs.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextStage(Stage);

/// Proof that the draft has a flow that is about to begin, with its first state.
#[derive(Clone, Copy, Debug)]
pub struct DraftedFlow(());

/// Proof that the draft has a decision about the packet, and the location of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftedDecision(());

impl DraftedFlow {
    /// For what has written a flow into the draft, or is given it.
    #[inline(always)]
    pub(crate) const fn proven() -> Self {
        Self(())
    }
}

impl DraftedDecision {
    /// For what has written a decision into the draft, or has called a function that does.
    #[inline(always)]
    pub(crate) const fn proven() -> Self {
        Self(())
    }
}

impl NextStage {
    pub const RESET: Self = Self(Stage::Reset);
    pub const ERROR_OUT: Self = Self(Stage::ErrorOut);
    pub const FRAGMENT_IN: Self = Self(Stage::FragmentIn);
    pub const FRAGMENT_OUT: Self = Self(Stage::FragmentOut);
    pub const DECAPSULATE: Self = Self(Stage::Decapsulate);
    pub const SHADOW: Self = Self(Stage::Shadow);
    pub const BFD: Self = Self(Stage::Bfd);
    pub const NEIGHBOUR: Self = Self(Stage::Neighbour);

    #[inline(always)]
    pub fn stage(self) -> Stage {
        self.0
    }

    /// `alone`: the lookup for the packet has found no other flow of its client's address and port.
    #[inline(always)]
    pub(crate) fn open<T: Scratch>(tables: &T, alone: bool) -> Self {
        if let Some(handover) = tables.handover() {
            handover.alone = Alone(alone.into());
            handover.redispatch = Redispatch::NONE;
        }
        Self(Stage::Open)
    }

    /// For a packet that repeats a SYN, and whose flow has ended.
    #[inline(always)]
    pub(crate) fn reopen<T: Scratch>(tables: &T, redispatch: Redispatch) -> Self {
        if let Some(handover) = tables.handover() {
            handover.alone = Alone(0);
            handover.redispatch = redispatch;
        }
        Self(Stage::Open)
    }

    #[inline(always)]
    pub(crate) fn begin(_: DraftedFlow) -> Self {
        Self(Stage::Begin)
    }

    #[inline(always)]
    pub(crate) fn snat(_: DraftedFlow) -> Self {
        Self(Stage::Snat)
    }

    #[inline(always)]
    pub(crate) fn untracked(_: DraftedFlow) -> Self {
        Self(Stage::Untracked)
    }

    #[inline(always)]
    pub(crate) fn send(_: DraftedDecision) -> Self {
        Self(Stage::Send)
    }

    /// `location`: of the flow whose SYN the packet repeats, or refuses.
    #[inline(always)]
    pub(crate) fn redispatch<T: Scratch>(tables: &T, location: Location) -> Self {
        if let Some(handover) = tables.handover() {
            handover.location = location;
        }
        Self(Stage::Redispatch)
    }

    #[inline(always)]
    pub(crate) fn reply(_: DraftedDecision) -> Self {
        Self(Stage::Reply)
    }

    #[inline(always)]
    pub(crate) fn spread<T: Scratch>(tables: &T, arrival: Arrival) -> Self {
        Self::with_arrival(tables, Stage::Spread, arrival)
    }

    #[inline(always)]
    pub(crate) fn delivered<T: Scratch>(tables: &T, arrival: Arrival) -> Self {
        Self::with_arrival(tables, Stage::Delivered, arrival)
    }

    #[inline(always)]
    pub(crate) fn accept<T: Scratch>(tables: &T, arrival: Arrival) -> Self {
        Self::with_arrival(tables, Stage::Accept, arrival)
    }

    #[inline(always)]
    pub(crate) fn earlier<T: Scratch>(tables: &T, arrival: Arrival) -> Self {
        Self::with_arrival(tables, Stage::Earlier, arrival)
    }

    #[inline(always)]
    pub(crate) fn error_in<T: Scratch>(tables: &T, arrival: Arrival) -> Self {
        Self::with_arrival(tables, Stage::ErrorIn, arrival)
    }

    #[inline(always)]
    pub(crate) fn reject<T: Scratch>(tables: &T, rejection: Rejection) -> Self {
        if let Some(handover) = tables.handover() {
            handover.rejection = rejection;
        }
        Self(Stage::Reject)
    }

    /// For a packet that no port of a Service takes, and that passes for this reason unless its address is
    /// one of load balancers.
    #[inline(always)]
    pub(crate) fn unserved<T: Scratch>(tables: &T, reason: Reason) -> Self {
        Self::unserved_port(tables, reason, 0)
    }

    /// For a packet of this protocol to a port that no Service has.
    #[inline(always)]
    pub(crate) fn unserved_port<T: Scratch>(tables: &T, reason: Reason, protocol: u8) -> Self {
        if let Some(handover) = tables.handover() {
            handover.unserved = Unserved { reason: reason as u32, protocol: protocol.into() };
        }
        Self(Stage::Unserved)
    }

    /// The verdict for a packet that is sent through a tunnel. `write` stores each field: a whole copy
    /// would be built on the stack first.
    #[inline(always)]
    pub(crate) fn encapsulate<T: Scratch + Counters>(
        tables: &T,
        write: impl FnOnce(&mut Encapsulation),
    ) -> Verdict {
        let Some(handover) = tables.handover() else {
            return drop_for(tables, Reason::CorruptTable);
        };
        write(&mut handover.encapsulation);
        Verdict::Next(Self(Stage::Encapsulate))
    }

    #[inline(always)]
    fn with_arrival<T: Scratch>(tables: &T, stage: Stage, arrival: Arrival) -> Self {
        if let Some(handover) = tables.handover() {
            handover.arrival = arrival;
        }
        Self(stage)
    }
}

/// What [`Stage::Open`] is given.
#[inline(always)]
pub(crate) fn given_alone<T: Scratch>(tables: &T) -> Alone {
    read_handover(tables, |handover| handover.alone)
}

/// How the packet of [`Stage::Open`] finds another backend.
#[inline(always)]
pub(crate) fn given_redispatch<T: Scratch>(tables: &T) -> Redispatch {
    read_handover(tables, |handover| handover.redispatch)
}

/// The flow of the packet of [`Stage::Redispatch`].
#[inline(always)]
pub(crate) fn given_location<T: Scratch>(tables: &T) -> Location {
    read_handover(tables, |handover| handover.location)
}

/// How a packet of a stage that is given it came to this node.
#[inline(always)]
pub(crate) fn given_arrival<T: Scratch>(tables: &T) -> Arrival {
    read_handover(tables, |handover| handover.arrival)
}

/// The error that [`Stage::Reject`] sends.
#[inline(always)]
pub fn given_rejection<T: Scratch>(tables: &T) -> Rejection {
    read_handover(tables, |handover| handover.rejection)
}

/// What [`Stage::Unserved`] is given.
#[inline(always)]
pub(crate) fn given_unserved<T: Scratch>(tables: &T) -> Unserved {
    read_handover(tables, |handover| handover.unserved)
}

/// What [`Stage::Encapsulate`] is given.
#[inline(always)]
pub(crate) fn given_encapsulation<T: Scratch>(tables: &T) -> Option<&Encapsulation> {
    tables.handover().map(|handover| &handover.encapsulation)
}

#[inline(always)]
fn read_handover<T: Scratch, R: Default>(tables: &T, read: impl FnOnce(&Handover) -> R) -> R {
    match tables.handover() {
        Some(handover) => read(handover),
        None => {
            // Followed last, and then as part of what is followed for any value.
            rarely();
            R::default()
        }
    }
}
