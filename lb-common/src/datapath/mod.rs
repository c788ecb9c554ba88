//! The data plane: what happens to a packet, as a function of its bytes and the tables.
//!
//! [`ingress`] takes packets that arrive on a device, [`egress`] those that leave by one. Both
//! climb the same ladder, the cheapest exit first: parse, prefilter, flow. What few packets need
//! is a [`Stage`] of its own: opening a flow, rejecting, ICMP errors, fragments. In the kernel a
//! stage is a program of its own, on a stack of its own; the ladder only says that it comes next.
//!
//! # Invariants
//! - What is not ours is passed, bit for bit as it came. Nothing is dropped but for a counted
//!   [`Reason`](crate::layout::Reason).
//! - No I/O, no clock, no allocation: everything comes in by [`Packet`] and [`Tables`].
//! - A packet that goes to another stage has not been changed yet; but for one out of a tunnel,
//!   which stands there as its client sent it.
//!
//! Tests: the packet tables in the crate `tests`, run on the host and in the kernel.

mod affinity;
mod alias;
mod answer;
mod decapsulate;
mod describe;
mod egress;
mod encapsulate;
mod errors;
mod follow;
mod fragments;
mod ingress;
mod limit;
mod link;
mod open;
mod parse;
mod select;
pub mod socket;
mod tcp;
mod traits;
mod translate;
mod tunnel;
mod way;

use crate::family::{Family, V4, V6};
pub use answer::{Rejection, RejectionKind};
pub use describe::describe;
pub use limit::Allowance;
pub use open::Draft;
pub use parse::Network;
pub use select::frontend_at;
pub use traits::{Direction, FamilyTables, Packet, Role, Tables};
pub use translate::End;
pub use way::{NextHop, Query, Route};

/// What stands before a packet that was deferred, in memory that never meets a wire.
pub const DEFERRED: u32 = 0x4d69_6c6c;

/// What happens to a packet.
///
/// One number: the kernel's verifier does not like values that are there in some variants only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on its way, translated or untouched.
    Pass,
    /// It ends here; the reason has been counted.
    Drop,
    /// It leaves by the device it came in by; its link-layer header is complete.
    Transmit,
    /// It leaves by the device of [`Packet::leave_by`]; its link-layer header is complete.
    Redirect,
    /// The same, but the stack is to find out the next hop's link-layer address.
    Resolve,
    /// Untouched, it goes to the hook behind this one on its way in, which can do more.
    Defer,
    /// It is not ours after all, or can't be told to be: it passes untouched; the reason has been
    /// counted. Apart from the hot [`Self::Pass`], so that only those are told of that have one.
    Decline,
    /// Another stage is to decide.
    Next(Stage),
}

/// What comes after the ladder that all packets climb.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A packet on its way in that belongs to no flow.
    Open = 0,
    /// One that opens a flow under an alias: [`FamilyTables::draft`] is the flow.
    Alias = 1,
    /// A TCP packet that is answered by a reset.
    Reset = 2,
    /// A packet that is answered by an ICMP error: [`Tables::rejection`] says by which.
    Reject = 3,
    /// An ICMP packet on its way in: an error about a packet of ours, perhaps.
    ErrorIn = 4,
    /// The same on its way out.
    ErrorOut = 5,
    /// A fragment on its way in.
    FragmentIn = 6,
    /// A fragment on its way out.
    FragmentOut = 7,
    /// A packet of a flow that goes through a tunnel to another node.
    Encapsulate = 8,
    /// A packet on its way in that may have come through a tunnel.
    Decapsulate = 9,
    /// One that has, and stands there as its client sent it: [`Tables::tag`] says to whom.
    Delivered = 10,
}

impl Stage {
    pub const ALL: [Self; 11] = [
        Self::Open,
        Self::Alias,
        Self::Reset,
        Self::Reject,
        Self::ErrorIn,
        Self::ErrorOut,
        Self::FragmentIn,
        Self::FragmentOut,
        Self::Encapsulate,
        Self::Decapsulate,
        Self::Delivered,
    ];
}

/// Where, behind the stages, the program is that tells of a packet at its end.
pub const TELL: u32 = Stage::ALL.len() as u32;

/// A packet arriving on a device: towards a Service, perhaps.
#[inline(always)]
pub fn ingress<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = parse::frame(packet) else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => ingress::packet::<V4, P, T>(packet, tables, frame.network),
        V6::ETHER_TYPE => ingress::packet::<V6, P, T>(packet, tables, frame.network),
        _ => Verdict::Pass,
    }
}

/// A packet leaving by a device: an answer of a backend, perhaps.
#[inline(always)]
pub fn egress<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = parse::frame(packet) else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => egress::packet::<V4, P, T>(packet, tables, frame.network),
        V6::ETHER_TYPE => egress::packet::<V6, P, T>(packet, tables, frame.network),
        _ => Verdict::Pass,
    }
}

/// What a packet came to after [`Verdict::Next`].
#[inline(always)]
pub fn stage<P, T>(stage: Stage, packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = parse::frame(packet) else {
        return Verdict::Pass;
    };
    match frame.ether_type {
        V4::ETHER_TYPE => stage_of::<V4, P, T>(stage, packet, tables, frame.network),
        V6::ETHER_TYPE => stage_of::<V6, P, T>(stage, packet, tables, frame.network),
        _ => Verdict::Pass,
    }
}

#[inline(always)]
fn stage_of<F, P, T>(stage: Stage, packet: &mut P, tables: &T, network: usize) -> Verdict
where
    F: tunnel::Outer,
    P: Packet,
    T: FamilyTables<F>,
{
    match stage {
        Stage::Open => open::packet::<F, P, T>(packet, tables, network),
        Stage::Alias => open::alias::<F, P, T>(packet, tables, network),
        Stage::Reset => answer::reset::<F, P, T>(packet, tables, network),
        Stage::Reject => answer::reject::<F, P, T>(packet, tables, network),
        Stage::ErrorIn => errors::arriving::<F, P, T>(packet, tables, network),
        Stage::ErrorOut => errors::leaving::<F, P, T>(packet, tables, network),
        Stage::FragmentIn => fragments::arriving::<F, P, T>(packet, tables, network),
        Stage::FragmentOut => fragments::leaving::<F, P, T>(packet, tables, network),
        Stage::Encapsulate => encapsulate::packet::<F, P, T>(packet, tables, network),
        Stage::Decapsulate => decapsulate::packet::<F, P, T>(packet, tables, network),
        Stage::Delivered => open::delivered::<F, P, T>(packet, tables, network),
    }
}
