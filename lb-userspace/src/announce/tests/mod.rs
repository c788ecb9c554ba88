//! Simulated networks of nodes.

mod backlog;
mod chaos;
mod figures;
mod hearing;
mod hostile;
mod scenarios;
mod world;
