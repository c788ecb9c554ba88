//! Speakers of routing protocols on this node: what they decide is pure, in `lb_bgp` and `lb_bfd`; here are their
//! configuration, sockets and threads.
//!
//! - `bgp`: advertises addresses of Services to routers
//! - `bfd`: detects broken paths to those routers; the kernel answers their packets, also while the agent is stuck
//!
//! Both have a shape in common: `config`, `io` (sockets), `session` (one peer), `view`, `run` (all peers).
//!
//! # Invariants
//! A peer can send anything, and any machine can send packets to the ports: each module says what is kept of that.

pub mod bfd;
pub mod bgp;
