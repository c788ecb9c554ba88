//! Simulated networks of nodes.

mod acknowledgement;
mod backlog;
mod chaos;
mod hostile;
mod many;
mod scenarios;
mod takeover;
mod world;
