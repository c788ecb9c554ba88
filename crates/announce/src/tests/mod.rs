//! Simulated networks of nodes.

mod acknowledgement;
mod backlog;
mod chaos;
mod dead_nodes;
mod hostile;
mod many;
mod scenarios;
mod slow;
mod takeover;
mod timing;
mod world;
