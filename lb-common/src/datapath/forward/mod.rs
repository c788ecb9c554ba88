//! Deciding what to do with a packet, and doing it: one [`decision::Decision`], one sender.

pub mod begin;
pub mod carry;
pub mod clamp;
pub mod decision;
pub mod execute;
pub mod lookup;
pub mod next_hop;
pub mod own;
pub mod owners;
pub mod quoted;
pub mod refuse;
pub mod refused;
pub mod rewrite;
pub mod send;
pub mod snat;
pub mod stored;
pub mod untracked;
