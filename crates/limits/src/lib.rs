//! Limits that several parts of Millrace need: how much of a common resource one client uses ([`Shares`]), which
//! addresses are one client ([`ClientNetwork`]), how often something happens ([`Rate`], [`RateLimiter`]), and how long
//! to wait after a failure ([`Backoff`]).
//!
//! Invariants:
//! - Nothing here waits, or reads a clock or random numbers: both are parameters.
//! - A limit per client counts an IPv6 host once, whichever addresses of its /64 it uses.

mod backoff;
mod client_network;
mod rate;
mod shares;

pub use backoff::{Backoff, apply_jitter};
pub use client_network::ClientNetwork;
pub use rate::{Moment, Rate, RateLimiter};
pub use shares::{Share, Shares};
