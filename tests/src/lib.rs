//! End-to-end tests of Millrace and what they are made of: packets that can be read, tables to
//! put them through, networks of namespaces with real servers and clients.

pub mod datapath;
pub mod network;
pub mod packet;
