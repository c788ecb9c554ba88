//! Networks of namespaces for tests: from a single host to a cluster. `topology` builds them; the others are networks
//! that several tests need.

pub mod announcers;
pub mod cluster;
pub mod container;
pub mod edge;
pub mod one_node;
pub mod rack;
pub mod service_manager;
pub mod topology;
