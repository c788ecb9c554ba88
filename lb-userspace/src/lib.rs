//! The program `millrace`: its command line and its configuration. All else is in other crates.

pub mod cli;
pub mod config;
