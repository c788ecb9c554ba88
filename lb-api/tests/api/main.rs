//! The embedded API, spoken to by real clients: every kubectl that is there, kube-rs, and plain
//! HTTPS where a client is to behave badly.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod clients;
mod hostile;
mod kubectl;
mod kubectls;
mod python;
mod reading;
mod server;
