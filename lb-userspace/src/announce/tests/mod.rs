//! Simulated networks of nodes.

mod chaos;
mod figures;
mod hostile;
mod scenarios;
mod world;
