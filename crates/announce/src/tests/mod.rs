//! Simulated networks of nodes.

mod backlog;
mod chaos;
mod figures;
mod hearing;
mod hostile;
mod many;
mod scenarios;
mod world;
