//! Scaffolding of the end-to-end tests: packets as text, the data plane with tables and packets,
//! and networks of namespaces with real servers and clients.

pub mod load;
pub mod manifests;
pub mod maps;
pub mod packets;
pub mod programs;
pub mod worlds;
