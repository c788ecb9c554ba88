//! The data plane: what happens to a packet, as a function of its bytes and the tables.
//!
//! [`forward`] takes packets on their way to a Service, [`reverse`] the answers. Both climb the
//! same ladder, the cheapest exit first: parse, prefilter, flow; and only for a packet that
//! opens a flow: frontend, pool, backend, commit. Then the packet is translated.
//!
//! # Invariants
//! - What is not ours is passed, bit for bit as it came. Nothing is dropped but for a counted
//!   [`Reason`](crate::layout::Reason).
//! - No I/O, no clock, no allocation: everything comes in by [`Packet`] and [`Tables`].
//!
//! Tests: the packet tables in the crate `tests`, run on the host and in the kernel.

mod forward;
mod parse;
mod reverse;
mod select;
pub mod socket;
mod tcp;
mod traits;
mod translate;

use crate::family::{Family, V4, V6};
use crate::layout::Reason;

pub use parse::Network;
pub use traits::{Direction, FamilyTables, Packet, Tables};
pub use translate::End;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on its way, translated or untouched.
    Pass,
    /// It ends here; the reason has been counted.
    Drop(Reason),
}

/// A packet arriving on an external device: towards a Service, perhaps.
#[inline(always)]
pub fn forward<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    by_family(packet, tables, Direction::Forward)
}

/// A packet leaving by an external device: an answer of a backend, perhaps.
#[inline(always)]
pub fn reverse<P, T>(packet: &mut P, tables: &T) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    by_family(packet, tables, Direction::Reverse)
}

#[inline(always)]
fn by_family<P, T>(packet: &mut P, tables: &T, direction: Direction) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let Some(frame) = parse::frame(packet) else {
        return Verdict::Pass;
    };
    match (frame.ether_type, direction) {
        (V4::ETHER_TYPE, Direction::Forward) => {
            forward::packet::<V4, P, T>(packet, tables, frame.network)
        }
        (V6::ETHER_TYPE, Direction::Forward) => {
            forward::packet::<V6, P, T>(packet, tables, frame.network)
        }
        (V4::ETHER_TYPE, Direction::Reverse) => {
            reverse::packet::<V4, P, T>(packet, tables, frame.network)
        }
        (V6::ETHER_TYPE, Direction::Reverse) => {
            reverse::packet::<V6, P, T>(packet, tables, frame.network)
        }
        _ => Verdict::Pass,
    }
}
