//! Which node announces an address on a link. Pure: [`Link`] takes events and the current time, and
//! returns what to do, so that a test can simulate a network of nodes.
//!
//! Invariants:
//!
//! - An address is taken only from a participant that is alive and hears this one, from one that is
//!   silent or hears no other participant and whose kernel does not answer, or if no participant
//!   holds it and no machine answers for it.
//! - Of two holders that hear each other, one gives up at once.
//! - A process that was paused listens again before it extends the kernel's deadlines.
//! - The absence of a message counts only when all that arrived has been read.
//!
//! See `docs/design/announcement.md`. Tests: beside each file, and `tests`, which simulates nodes.

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
pub use identity::{Id, Identity, LinkAddress, Rank, format_link_address};
pub use link::Link;
pub use seal::Keys;
pub use table::MOST_ADDRESSES;
pub use timing::{Time, Timing};
pub use view::{AddressView, LinkView, PeerView};
pub use wire::{LONGEST, LONGEST_INTERFACE, LONGEST_NODE};
