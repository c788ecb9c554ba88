//! Reads and clears BPF maps, beside the agent's own code for that.

pub mod any_map;
pub mod contents;
