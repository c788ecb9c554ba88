//! Which node announces an address on a link. Pure: [`LinkElection`] takes events and the current time, and
//! returns what to do, so that a test can simulate a network of nodes.
//!
//! An address on a link, as one participant keeps it ([`address_state`]):
//!
//! ```text
//! Elsewhere       --chosen, and no participant alive holds it--------> Probing
//! Elsewhere       --moved from a holder that is alive----------------> Here
//! Probing         --no reply-----------------------------------------> Here
//! Probing         --a participant's kernel replies-------------------> Answered
//! Answered        --after a second-----------------------------------> Probing
//! Probing, Here   --another machine uses it, or the kernel refuses it> Blocked
//! Blocked         --after two seconds--------------------------------> Probing, Elsewhere
//! Here            --a holder with precedence, or not wanted----------> Elsewhere
//! ```
//!
//! # Invariants
//!
//! - An address is taken only from a participant that is alive and hears this one, from one that is
//!   silent or hears no other participant and whose kernel does not answer, or if no participant
//!   holds it and no machine answers for it.
//! - Of two holders that hear each other, one gives up at once.
//! - A process that was paused listens again before it extends the kernel's deadlines.
//! - The absence of a message counts only when all that arrived has been read.
//!
//! See `docs/design/announcement.md`. Tests: beside each file, and `tests`, which simulates nodes.

mod acknowledgement;
mod address_state;
mod admission;
mod choice;
mod conflict;
mod decisions;
mod event;
mod heartbeats;
mod identity;
mod link;
mod liveness;
mod node_liveness;
mod node_signs;
mod pacing;
mod peers;
mod probing;
mod reachability;
mod remote_holders;
mod seal;
mod sequences;
mod table;
#[cfg(test)]
mod tests;
mod timing;
mod view;
mod wire;

pub use address_state::{AddressState, AdoptedAddress};
pub use choice::limit_share;
pub use event::{ElectionEvent, LinkEffect, LinkFrame, LinkInput};
pub use identity::{
    CandidateRank, LinkAddress, ParticipantId, ParticipantIdentity, format_link_address,
};
pub use link::LinkElection;
pub use node_liveness::{NodeLiveness, ProbeOutcome};
pub use node_signs::NodeSigns;
pub use seal::SealKeys;
pub use table::MAX_ADDRESSES;
pub use timing::{ElectionTiming, Time};
pub use view::{AddressView, LinkView, PeerView};
pub use wire::{MAX_HEARTBEAT_OCTETS, MAX_INTERFACE_NAME_OCTETS, MAX_NODE_NAME_OCTETS};
