//! Scaffolding of the end-to-end tests: packets as text, the data plane with tables and packets,
//! and topologies of network namespaces with real servers and clients.

pub mod agent;
pub mod cluster;
pub mod container;
pub mod contents;
pub mod datapath;
pub mod figures;
pub mod generator;
pub mod load;
pub mod manifests;
pub mod one_node;
pub mod packet;
pub mod scenario;
pub mod topology;
pub mod watcher;
