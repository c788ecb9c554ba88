//! Scaffolding of the end-to-end tests: packets as text, the data plane with tables and packets,
//! and topologies of network namespaces with real servers and clients.

pub mod agent;
pub mod announcers;
pub mod any_map;
pub mod api_server;
pub mod bgp;
pub mod bgp_daemons;
pub mod bird;
pub mod cluster;
pub mod container;
pub mod contents;
pub mod crowd;
pub mod datapath;
pub mod figures;
pub mod frr;
pub mod generator;
pub mod ingress;
pub mod load;
pub mod machine;
pub mod manifests;
pub mod one_node;
pub mod packet;
pub mod rack;
pub mod scenario;
pub mod tables;
pub mod topology;
pub mod upload;
pub mod watcher;
