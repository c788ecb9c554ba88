//! Programs that tests start on hosts: the agent, the embedded API, and routers of others.

pub mod agent;
pub mod api_server;
pub mod bgp;
pub mod bgp_daemons;
pub mod bird;
pub mod frr;
pub mod usage;
