//! End-to-end tests of Millrace and what they are made of: packets that can be read, the data
//! plane between tables and packets, topologies of namespaces with real servers and clients.

pub mod agent;
pub mod cluster;
pub mod container;
pub mod contents;
pub mod datapath;
pub mod figures;
pub mod generator;
pub mod load;
pub mod one_node;
pub mod packet;
pub mod scenario;
pub mod topology;
pub mod watcher;
