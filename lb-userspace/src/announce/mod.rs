//! Which node announces an address on a link. Pure: [`Link`] gets what happens and the time, and
//! returns what to do, so that a test can simulate a network of nodes.
//!
//! Invariants: an address is taken only from a participant that is alive and hears this one, or
//! that is silent or hears nobody and whose kernel does not answer, or if no other machine answers
//! for it; of two holders that hear each other one gives up at once; the kernel's deadlines are not
//! extended by a process that was paused before it has listened again; that something was not heard
//! counts only when all that arrived has been read. See `docs/design/announcement.md`.
//!
//! Tests: beside each file, and `tests`, which simulates nodes.

mod choice;
mod claim;
mod claimant;
mod decide;
mod event;
mod exam;
mod hearing;
mod hold;
mod identity;
mod judge;
mod link;
mod pacing;
mod peers;
mod probe;
mod seal;
mod send;
mod sequences;
mod strangers;
mod table;
#[cfg(test)]
mod tests;
mod timing;
mod view;
mod wire;

pub use choice::capacity;
pub use event::{Effect, Frame, Input, News};
pub use hold::{Held, Whereabouts};
pub use identity::{Id, Identity, LinkAddress, Rank};
pub use link::Link;
pub use seal::Keys;
pub use timing::{Time, Timing};
pub use view::{AddressView, LinkView, PeerView};
pub use wire::{LONGEST, LONGEST_INTERFACE, LONGEST_NODE};
