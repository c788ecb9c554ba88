//! The embedded API with real clients: every installed kubectl, kube-rs, and plain HTTPS for
//! clients that misbehave.

// All modules contain only tests.
#![allow(clippy::unwrap_used)]

mod clients;
mod compared;
mod controllers;
mod costly;
mod declared;
mod fidelity;
mod hostile;
mod kubectl;
mod kubectls;
mod python;
mod raw;
mod reading;
mod roles;
mod server;
mod widgets;
