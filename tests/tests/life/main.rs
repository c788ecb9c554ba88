//! The life of an agent: starts, restarts, upgrades, crashes. Each test has a pin directory of its own, and loads
//! the programs itself: needs root and much processor time.

mod bad_input;
mod churn;
mod crash;
mod restart;
mod resume;
mod reuse;
mod service;
mod upgrade;
