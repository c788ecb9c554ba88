//! Memory that CPUs share without a lock: words of 32 and 64 bits, and records that are read
//! between two reads of a word.
//!
//! `core` has no 32-bit atomics on the BPF target, although the instruction set has had
//! compare-and-exchange since v3; there, the compiler's intrinsic emits it. On the host these are
//! `AtomicU32` and `AtomicU64`. With the feature `model` they are loom's, and the crate `models`
//! runs the flow table in every order that they allow (`docs/design/concurrency.md`).
//!
//! In BPF, plain loads and stores of aligned words are single instructions, and x86-64 keeps loads
//! in order, and stores. A weakly ordered CPU would need load-acquire and store-release of
//! instruction set v4; the agent refuses to start there.

#[cfg(not(feature = "model"))]
mod memory;
#[cfg(feature = "model")]
mod model;

#[cfg(not(feature = "model"))]
pub use memory::{AtomicLong, AtomicWord, Record};
#[cfg(feature = "model")]
pub use model::{AtomicLong, AtomicWord, Record};
