//! Nodes that get their objects from the embedded API, by kubectl and others: needs root.

mod assignment;
mod ingress;
mod secrets;
mod standalone;
