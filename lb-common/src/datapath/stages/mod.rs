//! What hooks run: the steps that all packets take, and the stages that follow.

pub mod decapsulate;
pub mod delivered;
pub mod egress;
pub mod encapsulate;
pub mod fragment;
pub mod icmp_error;
pub mod ingress;
pub mod open;
pub mod reject;
pub mod shadow;
pub mod socket;
pub mod spread;
