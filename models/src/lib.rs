//! CPUs that share the tables of one node and run the data plane at the same time. loom runs each model
//! again and again, in every order of the CPUs' memory accesses that differs, and with every value that
//! the memory model lets a CPU see.
//!
//! What runs is `lb_common::datapath`, as in the kernel; only the words and records of the flow table
//! and the reply index are loom's (`lb_common::atomic`). Everything else is a CPU's own or never changes.
//!
//! Tests: `tests/`. What they show and what not: `docs/design/concurrency.md`.

mod cpu;
mod explore;

pub use cpu::{Cpu, Fate, Node, Service};
pub use explore::{First, Work, explore, in_parallel};
