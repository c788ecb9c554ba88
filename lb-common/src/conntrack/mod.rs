//! Connection tracking: the state of connections, and how packets change it.
//!
//! - [`state`]: states, events and transitions of TCP, SCTP and datagrams; a pure function.
//!   [`track`]: which event a packet is to its connection, by what a flow remembers.
//! - [`timeout`]: how long an entry lives in each state, and which entries a new flow replaces.
//! - `entry`: the word of a tag. `table`: finding entries. `claim`: claiming one for a new flow.
//!   `hops`: the next hops that flows store. `crowd`: flows that are not in their
//!   client's buckets.
//! - [`reply_index`]: finding flows by replies that do not carry the client's address and port.
//! - `contents`: reading buckets, for the agent and tests.
//!
//! # Invariants
//! - A record is read only between two equal reads of its tag, whose generation changes with every
//!   owner. It is written only by the CPU that claimed its tag.
//! - A new flow never replaces a protected one ([`timeout`]).
//! - No packet that a blind sender can forge establishes a connection, ends one, or moves the
//!   positions by which others are judged.
//!
//! All of it is plain code over memory, the same on the host and in the kernel. Design and sources:
//! `docs/design/conntrack.md`. Tests: beside each module, and the packet tables of the crate
//! `tests`.

mod claim;
mod contents;
mod crowd;
mod entry;
mod hops;
pub mod reply_index;
#[cfg(all(test, not(feature = "model")))]
mod reply_index_tests;
pub mod state;
#[cfg(test)]
mod state_tests;
mod table;
mod tables;
#[cfg(test)]
mod tests;
pub mod timeout;
pub mod track;

pub use claim::{EntryClaim, claim_flow_entry};
pub use crowd::{
    bit_of, clear_stale, crowded_bits, crowded_words, fills_its_share, forget_lately, is_crowded,
    set_crowded,
};
pub use hops::Hops;
pub use state::STATES;
pub use table::{
    LocatedFlow, Location, evict_at, find_at, find_entry_in_bucket, find_first, flow_at, hops_at,
    is_alive, is_gone, rank_at, release_at,
};
pub use tables::{Environment, FlowTables};
pub use timeout::Timeouts;
pub use track::{Beginning, Signal};
