//! One node with an agent, clients and pods, each a network namespace: needs root.

mod announce;
mod assigned_addresses;
mod bulk;
mod check;
mod clsact;
mod commands;
mod devices;
mod drops;
mod exact;
mod flood;
mod fragments;
mod headers;
mod ingress_routes;
mod kube_proxy;
mod lent_ports;
mod namespaces;
mod network;
mod network_watch;
mod next_hop;
mod pods;
mod sctp;
mod serve;
mod snat_ports;
mod sockets;
mod topology;
mod trace;
