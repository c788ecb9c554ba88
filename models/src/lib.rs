//! CPUs that share the tables of one node and run the data plane at the same time. loom runs each
//! model in every distinguishable order of the CPUs' memory accesses, and with every value that the
//! memory model lets a CPU see.
//!
//! The code that runs is `lb_common::datapath`, as in the kernel. Only the words and records of the
//! flow table and the reply index are loom's (`lb_common::atomic`). Everything else is private to a
//! CPU or constant.
//!
//! Tests: `tests/`. `docs/design/concurrency.md` describes what they show, and what they do not.

mod cpu;
mod explore;

pub use cpu::{Cpu, Fate, Node, Service};
pub use explore::{First, Work, explore, in_parallel};
