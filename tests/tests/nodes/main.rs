//! Several nodes and routers in network namespaces: needs root.

mod announcements;
mod bgp_attacks;
mod cni;
mod dead_nodes;
mod forwarding;
mod path_mtu;
mod receivers;
mod slot_history;
mod tunnels;
mod two_machines;
mod xdp;
