//! Agents beside programs of others (FRR, BIRD, OpenBGPD, Prometheus, gRPC clients) in network namespaces: needs
//! root and these programs, which `cargo xtask prerequisites` installs.

mod bfd;
mod bgp;
mod bgp_peers;
mod container;
mod ecmp;
mod ingress_clients;
mod monitoring;
mod service_manager;
