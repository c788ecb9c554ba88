//! What hooks run: the common path of all packets, and the stages behind it.

pub mod bfd;
pub mod decapsulate;
pub mod delivered;
pub mod earlier;
pub mod egress;
pub mod encapsulate;
pub mod execute;
pub mod fragment;
pub mod icmp_error;
pub mod ingress;
pub mod neighbour;
pub mod node;
pub mod open;
pub mod probe;
pub mod receiver;
pub mod redispatching;
pub mod reject;
pub mod shadow;
pub mod socket;
pub mod spread;
pub mod unserved;
