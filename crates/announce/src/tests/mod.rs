//! Simulated networks of nodes.

mod acknowledgement;
mod backlog;
mod chaos;
mod figures;
mod hostile;
mod many;
mod scenarios;
mod world;
